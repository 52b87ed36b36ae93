// The dense form: every weight is a digit, 0 unchanged, 1 plus, 2 minus, five to a byte as a number of
// base 3.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "codec.hpp"

namespace p2psgd::P2PSGD_PATH {

inline constexpr unsigned dense_byte_max = 242;  // 3^5 - 1

inline void put_dense(const std::uint32_t* words, std::size_t count, std::uint64_t weights,
                      std::uint8_t* out) noexcept {
    constexpr std::uint8_t power[dense_digits] = {1, 3, 9, 27, 81};
    const std::size_t bytes = static_cast<std::size_t>(dense_bytes(weights)) - 1;
    *out++ = dense_header;
    for (std::size_t i = 0; i < bytes; ++i) out[i] = 0;
    for (std::size_t i = 0; i < count; ++i) {
        const std::uint32_t index = words[i] >> 1;
        const std::uint32_t digit = 1 + (words[i] & 1);
        std::uint8_t& byte = out[index / dense_digits];
        byte = static_cast<std::uint8_t>(byte + digit * power[index % dense_digits]);
    }
}

// payload[0] is the header; words may be null. Faults with where = 0; the caller has checked count and
// weights.
inline Outcome read_dense(const std::uint8_t* payload, std::size_t bytes, std::size_t count,
                          std::uint64_t weights, std::uint32_t* words) noexcept {
    const std::uint64_t whole = dense_bytes(weights);
    if (bytes < whole) return {Status::truncated, 0};
    if (bytes > whole) return {Status::trailing_bytes, bytes - whole};
    std::size_t found = 0;
    for (std::size_t i = 1; i < bytes; ++i) {
        unsigned digits = payload[i];
        if (digits == 0) continue;
        if (digits > dense_byte_max) return {Status::digits_out_of_range, 0};
        for (std::uint64_t index = std::uint64_t{i - 1} * dense_digits; digits != 0; ++index, digits /= 3) {
            if (digits % 3 == 0) continue;
            if (index >= weights) return {Status::padding_not_zero, 0};
            if (found == count) return {Status::count_mismatch, 0};
            if (words != nullptr) words[found] = static_cast<std::uint32_t>(index) << 1 | (digits % 3 - 1);
            ++found;
        }
    }
    return {found == count ? Status::ok : Status::count_mismatch, 0};
}

}  // namespace p2psgd::P2PSGD_PATH
