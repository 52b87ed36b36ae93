// Applying an update to a replica (integers, the truth) or to a trainer's working copy (the same values in
// float32).
#pragma once

#include <cstddef>
#include <cstdint>

#include "status.hpp"

namespace p2psgd {

struct Largest {
    std::uint32_t magnitude;  // of a coordinate, 0 when no word was applied
    std::uint32_t index;      // the first in the order of the words that has it
};

// coordinates[index] += or -= step for every word; wraps at 32 bits, which the caller prevents by acting on
// *largest. Indices in words must be distinct for *largest to hold; arrays are the caller's, aligned to 4
// bytes, and must not overlap. Faults, each with nothing changed: step_out_of_range (not 1..step_max),
// index_out_of_range (where = the position of the word).
using ApplyCoordinates = Outcome(std::int32_t* coordinates, std::size_t weights, const std::uint32_t* words,
                                 std::size_t count, std::uint32_t step, Largest* largest) noexcept;

// values[index] += or -= amount for every word, in float32. Exact while all values are multiples of one power
// of two and under 2^24 of it. Faults, each with nothing changed: amount_not_positive (or not finite),
// index_out_of_range (where = the position of the word).
using ApplyWeights = Outcome(float* values, std::size_t weights, const std::uint32_t* words,
                             std::size_t count, float amount) noexcept;

}  // namespace p2psgd
