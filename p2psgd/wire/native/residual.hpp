// The residual pass of [Strom 2015] (lines 4-7 of the algorithm): accumulate, threshold, emit, subtract, in
// one sweep.
#pragma once

#include <cstddef>
#include <cstdint>

#include "status.hpp"

namespace p2psgd {

struct Swept {
    std::size_t count;  // words emitted
    std::size_t next;   // where the next pass must start; 0 when everything over the threshold was emitted
};

// For every i in 0..weights, in float32 arithmetic: r = residual[i] + delta[i]; r > threshold: emit +i and
// subtract the threshold; r < -threshold: emit -i and add it. The sweep begins at `start` and wraps; after
// `capacity` words it goes on accumulating and no longer emits, and swept->next is the first weight that
// missed its turn, so that a full update never starves the high indices. words[0..capacity) receives the
// words sorted by index. All arrays are the caller's, aligned to 4 bytes, and must not overlap.
//
// Every delta is examined before anything is changed. Faults, each with nothing changed: not_finite (where =
// the first such index), weights_out_of_range (not 1..weights_max), start_out_of_range (not below weights),
// amount_not_positive (threshold not finite or <= 0).
using ResidualPass = Outcome(float* residual, const float* delta, std::size_t weights, float threshold,
                             std::size_t start, std::uint32_t* words, std::size_t capacity,
                             Swept* swept) noexcept;

}  // namespace p2psgd
