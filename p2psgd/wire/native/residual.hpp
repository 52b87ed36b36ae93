// The residual pass of [Strom 2015] (lines 4-7 of the algorithm): accumulate, threshold, emit, subtract, in
// one sweep from one buffer to another.
#pragma once

#include <cstddef>
#include <cstdint>

#include "status.hpp"

namespace p2psgd {

// What a delta's elements are; all of them widen to float32 exactly. `negated`: float32 with the other sign,
// which is what a sum less these is.
enum class Precision : int { float32, float16, bfloat16, negated };

// Values of this precision, aligned to their own size.
struct Delta {
    const void* values;
    Precision precision;
};

struct Swept {
    std::size_t count;   // words emitted
    std::size_t missed;  // the first i that was over the threshold and found no room; `weights` when none was
};

// For every i in 0..weights, in float32 arithmetic: r = source[i] + delta[i]; r > threshold: emit the index
// first + i with a plus and subtract the threshold; r < -threshold: emit it with a minus and add the
// threshold; target[i] = r. After `capacity` words, which may be 0, the sweep goes on accumulating and no
// longer emits. words[0..capacity) receives the words, sorted. All arrays are the caller's, source, target
// and words aligned to 4 bytes; target overlaps no other array. Nothing but target, words and *swept is
// written.
//
// Faults: weights_out_of_range (not 1..weights_max), start_out_of_range (first + weights beyond weights_max),
// amount_not_positive (threshold not finite or <= 0), all with nothing written; not_finite (where = first + i
// of the first r that is NaN or infinite), with target and words undefined.
using ResidualPass = Outcome(const float* source, Delta delta, float* target, std::size_t weights,
                             float threshold, std::size_t first, std::uint32_t* words, std::size_t capacity,
                             Swept* swept) noexcept;

}  // namespace p2psgd
