// How the Python face refuses: the exception of a status, and checks of arguments that no kernel makes.
#pragma once

#include <nanobind/nanobind.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>

#include "buffer.hpp"
#include "limits.hpp"
#include "status.hpp"

namespace p2psgd {

[[noreturn]] inline void raise_value_error(const std::string& sentence) {
    throw nanobind::value_error(sentence.c_str());
}

// For faults of our own callers; a payload's faults are returned by decode() instead, they are a peer's.
inline void check(Outcome outcome) {
    const std::string where = std::to_string(outcome.where);
    switch (outcome.status) {
        case Status::ok: return;
        case Status::weights_out_of_range:
            raise_value_error("the number of weights is not within 1 to 2**31");
        case Status::count_out_of_range:
            raise_value_error("the number of indices is not within 1 to indices_max(weights)");
        case Status::not_sorted:
            raise_value_error("the words of block " + where +
                              " are not in ascending order of distinct indices");
        case Status::index_out_of_range:
            raise_value_error("the word at position " + where +
                              " has an index that is not below the number of weights");
        case Status::step_out_of_range:
            raise_value_error("step " + where + " is not within 1 to 2**20 quanta");
        case Status::amount_not_positive:
            raise_value_error("a threshold or amount must be positive and finite");
        case Status::start_out_of_range:
            raise_value_error("the weights from start " + where + " on do not all lie below 2**31");
        case Status::not_finite:
            raise_value_error("at weight " + where + " the residual and delta add up to NaN or infinity");
        default:
            raise_value_error("status " + std::to_string(static_cast<int>(outcome.status)) + " at " + where);
    }
}

inline void check_weights(std::uint64_t weights) {
    if (weights < 1 || weights > weights_max) check({Status::weights_out_of_range, 0});
}

// Thresholds and amounts are a step times a power of two: one that float32 cannot hold is a mistake, and
// rounding would hide it.
inline float exact(double value, const char* what) {
    const float rounded = static_cast<float>(value);
    if (std::isfinite(value) && static_cast<double>(rounded) != value)
        raise_value_error(std::string(what) + " is not exact in float32");
    return rounded;
}

// Refuses buffers of which one is written and that share memory.
template <typename One, typename Other>
void check_apart(const Buffer<One>& one, const char* name, const Buffer<Other>& other, const char* other_name) {
    const auto begin = reinterpret_cast<std::uintptr_t>(one.data());
    const auto other_begin = reinterpret_cast<std::uintptr_t>(other.data());
    if (begin < other_begin + other.size() * sizeof(Other) && other_begin < begin + one.size() * sizeof(One))
        raise_value_error(std::string(name) + " overlaps " + other_name);
}

}  // namespace p2psgd
