// Applying updates to a replica (integers, the truth) or to a trainer's working copy (the same values in
// float32): one, or many together.
#pragma once

#include <cstddef>
#include <cstdint>

#include "status.hpp"

namespace p2psgd {

struct Largest {
    std::uint32_t magnitude;  // of a coordinate, 0 when no word was applied
    std::uint32_t index;      // which has it
};

// coordinates[index] += or -= step for every word; wraps at 32 bits, which the caller prevents by acting on
// *largest, whose index is the first in the order of the words. Indices in words must be distinct for
// *largest to hold; arrays are the caller's, aligned to 4 bytes, and must not overlap. Faults, each with
// nothing changed: step_out_of_range (not 1..step_max), index_out_of_range (where = the position of the
// word).
using ApplyCoordinates = Outcome(std::int32_t* coordinates, std::size_t weights, const std::uint32_t* words,
                                 std::size_t count, std::uint32_t step, Largest* largest) noexcept;

// values[index] += or -= amount for every word, in float32. Exact while all values are multiples of one power
// of two and under 2^24 of it. Faults, each with nothing changed: amount_not_positive (or not finite),
// index_out_of_range (where = the position of the word).
using ApplyWeights = Outcome(float* values, std::size_t weights, const std::uint32_t* words,
                             std::size_t count, float amount) noexcept;

inline constexpr std::size_t together_max = 4096;  // updates in one call: a cursor for each lies on the stack

struct CoordinateUpdate {
    const std::uint32_t* words;
    std::size_t count;
    std::uint32_t step;
};

struct WeightUpdate {
    const std::uint32_t* words;
    std::size_t count;
    float amount;
};

// The same result as one update after the other, in the order given for each weight, but one range of weights
// at a time, so that memory is walked once and not once for each update. That pays for words sorted by index,
// as updates have them; others are applied as well, all of them. largest->magnitude is the largest that any
// coordinate had after any update, largest->index the least index that had it. Faults, each with nothing
// changed: count_out_of_range (updates_count above together_max), and those above with where = the update.
using ApplyCoordinatesTogether = Outcome(std::int32_t* coordinates, std::size_t weights,
                                         const CoordinateUpdate* updates, std::size_t updates_count,
                                         Largest* largest) noexcept;
using ApplyWeightsTogether = Outcome(float* values, std::size_t weights, const WeightUpdate* updates,
                                     std::size_t updates_count) noexcept;

}  // namespace p2psgd
