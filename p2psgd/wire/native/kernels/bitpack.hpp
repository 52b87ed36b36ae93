// Groups of eight values of one width, packed LSB first: a group of width W is exactly W bytes, so every
// group starts on a byte.
//
// The width is a template argument, so that offsets and shifts are constants; the callers' tables hold one
// instance per width.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "bytes.hpp"
#include "limits.hpp"

namespace p2psgd::P2PSGD_PATH {

inline constexpr std::size_t group_values = 8;

// Packs groups * 8 values (each under 2^W); writes up to 7 bytes beyond the last group.
template <unsigned W>
void pack_groups(const std::uint32_t* values, std::size_t groups, std::uint8_t* out) noexcept {
    constexpr unsigned packed_words = (W + 7) / 8;
    for (; groups > 0; --groups, values += group_values, out += W) {
        std::uint64_t packed[packed_words + 1] = {};
        for (unsigned j = 0; j < group_values; ++j) {
            const unsigned bit = j * W;
            const std::uint64_t value = values[j];
            packed[bit / 64] |= value << (bit % 64);
            if (bit % 64 + W > 64) packed[bit / 64 + 1] |= value >> (64 - bit % 64);
        }
        for (unsigned j = 0; j < packed_words; ++j) store64(out + 8 * j, packed[j]);
    }
}

// Unpacks groups * 8 values; reads no byte beyond the last group.
template <unsigned W>
void unpack_groups(const std::uint8_t* in, std::size_t groups, std::uint32_t* values) noexcept {
    constexpr std::uint32_t mask = (std::uint32_t{1} << W) - 1;
    for (; groups > 0; --groups, in += W, values += group_values) {
        if constexpr (W < 4) {  // a group is shorter than a load
            std::uint32_t packed = 0;
            for (unsigned j = 0; j < W; ++j) packed |= static_cast<std::uint32_t>(in[j]) << (8 * j);
            for (unsigned j = 0; j < group_values; ++j) values[j] = (packed >> (j * W)) & mask;
        } else {
            // The last loads end with the group instead of starting with their value.
            for (unsigned j = 0; j < group_values; ++j) {
                const unsigned byte = j * W / 8 < W - 4 ? j * W / 8 : W - 4;
                values[j] = (load32(in + byte) >> (j * W - 8 * byte)) & mask;
            }
        }
    }
}

using PackGroups = void (*)(const std::uint32_t*, std::size_t, std::uint8_t*) noexcept;
using UnpackGroups = void (*)(const std::uint8_t*, std::size_t, std::uint32_t*) noexcept;

namespace detail {

template <std::size_t... W>
constexpr std::array<PackGroups, sizeof...(W)> packers(std::index_sequence<W...>) noexcept {
    return {&pack_groups<W + 1>...};
}

template <std::size_t... W>
constexpr std::array<UnpackGroups, sizeof...(W)> unpackers(std::index_sequence<W...>) noexcept {
    return {&unpack_groups<W + 1>...};
}

}  // namespace detail

inline constexpr unsigned width_max = rice_max + 1;  // a remainder and its sign
inline constexpr auto pack_by_width = detail::packers(std::make_index_sequence<width_max>{});  // [width - 1]
inline constexpr auto unpack_by_width =
    detail::unpackers(std::make_index_sequence<width_max>{});  // [width - 1]

}  // namespace p2psgd::P2PSGD_PATH
