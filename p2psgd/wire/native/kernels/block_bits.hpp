// One bit for each word of a block: which are negative, which differ in sign from the word before, which are
// near.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

#include "bytes.hpp"
#include "limits.hpp"

#if defined(__BMI2__)
#include <immintrin.h>
#endif

namespace p2psgd::P2PSGD_PATH {

inline constexpr std::size_t lanes = block_gaps / 64;

struct BlockBits {
    std::uint64_t lane[lanes] = {};  // bit i of the block is bit i % 64 of lane i / 64

    bool test(std::size_t i) const noexcept { return (lane[i / 64] >> (i % 64) & 1) != 0; }
    void set(std::size_t i) noexcept { lane[i / 64] |= std::uint64_t{1} << (i % 64); }
};

// The first `count` bits of lane `i` set: those that a block of `count` words has.
inline std::uint64_t valid(std::size_t count, std::size_t i) noexcept {
    if (count >= 64 * (i + 1)) return ~std::uint64_t{0};
    return count <= 64 * i ? 0 : (std::uint64_t{1} << (count - 64 * i)) - 1;
}

// Bit i is flag(i), 0 or 1, for each i below `count`. Eight bytes of 0 or 1 become eight bits by one
// multiplication, whose partial products put byte i at bit 56 + i.
template <typename Flag>
BlockBits collect(std::size_t count, Flag flag) noexcept {
    BlockBits bits;
    for (std::size_t i = 0; i * 64 < count; ++i) {
        std::uint8_t flags[64] = {};
        const std::size_t size = count - 64 * i < 64 ? count - 64 * i : 64;
        if (size == 64) {
            for (std::size_t j = 0; j < 64; ++j) flags[j] = static_cast<std::uint8_t>(flag(64 * i + j));
        } else {
            for (std::size_t j = 0; j < size; ++j) flags[j] = static_cast<std::uint8_t>(flag(64 * i + j));
        }
        for (unsigned j = 0; j < 8; ++j)
            bits.lane[i] |= (load64(flags + 8 * j) * 0x0102040810204080u >> 56) << (8 * j);
    }
    return bits;
}

// Moves the bits under `mask` together at the low end.
inline std::uint64_t compress(std::uint64_t bits, std::uint64_t mask) noexcept {
#if defined(__BMI2__)
    return _pext_u64(bits, mask);
#else
    std::uint64_t packed = 0;
    for (unsigned place = 0; mask != 0; mask &= mask - 1, ++place)
        packed |= (bits >> std::countr_zero(mask) & 1) << place;
    return packed;
#endif
}

// Moves the low bits apart, to where `mask` has ones.
inline std::uint64_t deposit(std::uint64_t bits, std::uint64_t mask) noexcept {
#if defined(__BMI2__)
    return _pdep_u64(bits, mask);
#else
    std::uint64_t spread = 0;
    for (; mask != 0; mask &= mask - 1, bits >>= 1) spread |= (bits & 1) << std::countr_zero(mask);
    return spread;
#endif
}

// Where two neighbours differ: bit i of the result is bit i xor bit i - 1; before the first stands a 0.
inline BlockBits changes_of(const BlockBits& bits) noexcept {
    BlockBits changes;
    std::uint64_t before = 0;
    for (std::size_t i = 0; i < lanes; ++i) {
        changes.lane[i] = bits.lane[i] ^ (bits.lane[i] << 1 | before);
        before = bits.lane[i] >> 63;
    }
    return changes;
}

// The inverse.
inline BlockBits without_changes(const BlockBits& changes) noexcept {
    BlockBits bits;
    std::uint64_t before = 0;  // all ones if the bit before is one
    for (std::size_t i = 0; i < lanes; ++i) {
        std::uint64_t lane = changes.lane[i];
        for (unsigned shift = 1; shift < 64; shift *= 2) lane ^= lane << shift;
        lane ^= before;
        bits.lane[i] = lane;
        before = -(lane >> 63);
    }
    return bits;
}

}  // namespace p2psgd::P2PSGD_PATH
