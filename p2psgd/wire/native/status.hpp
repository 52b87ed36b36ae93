// What an entry of the core returns: it never throws, and never allocates.
#pragma once

#include <cstdint>

namespace p2psgd {

enum class Status : int {
    ok = 0,
    // the caller's arguments
    weights_out_of_range,
    count_out_of_range,
    output_too_small,
    not_sorted,
    index_out_of_range,  // also of a payload
    step_out_of_range,
    amount_not_positive,
    start_out_of_range,
    not_finite,
    // a payload's bytes
    truncated,
    trailing_bytes,
    parameter_out_of_range,
    padding_not_zero,
    run_out_of_range,
    digits_out_of_range,
    count_mismatch,
};

// `where` is the place of the first fault: a block of a payload, a position in words, or an index; 0 when
// there is none to name.
struct Outcome {
    Status status;
    std::uint64_t where;
};

}  // namespace p2psgd
