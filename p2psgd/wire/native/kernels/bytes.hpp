// Unaligned little-endian loads and stores, which compilers turn into single instructions.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>

namespace p2psgd::P2PSGD_PATH {

static_assert(std::endian::native == std::endian::little,
              "the wire and the shared segments are little-endian, and so must be the machine");

inline std::uint32_t load32(const std::uint8_t* from) noexcept {
    std::uint32_t value;
    std::memcpy(&value, from, sizeof value);
    return value;
}

inline std::uint64_t load64(const std::uint8_t* from) noexcept {
    std::uint64_t value;
    std::memcpy(&value, from, sizeof value);
    return value;
}

inline void store64(std::uint8_t* to, std::uint64_t value) noexcept { std::memcpy(to, &value, sizeof value); }

}  // namespace p2psgd::P2PSGD_PATH
