// The digest of a replica: sum(coordinate_i * h(i)) mod 2^64 with a keyed odd 64-bit hash h; linear, so
// updates may come in any order.
#pragma once

#include <cstddef>
#include <cstdint>

namespace p2psgd {

inline constexpr std::uint64_t index_golden = 0x9E3779B97F4A7C15u;

// h(i): the splitmix64 finalizer (Steele, Lea and Flood, OOPSLA 2014, as published by Vigna) over key + (i +
// 1) * golden, made odd.
constexpr std::uint64_t index_hash(std::uint64_t index, std::uint64_t key) noexcept {
    std::uint64_t z = key + (index + 1) * index_golden;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return (z ^ z >> 31) | 1;
}

// What an update adds to the digest: sum(+-step * h(index)) mod 2^64. Takes any words; words must be aligned
// to 4 bytes.
using DigestWords = std::uint64_t(const std::uint32_t* words, std::size_t count, std::uint32_t step,
                                  std::uint64_t key) noexcept;

// The contribution of coordinates[0..count), which are those of the weights start, start + 1, ...; slices add
// up mod 2^64.
using DigestCoordinates = std::uint64_t(const std::int32_t* coordinates, std::size_t count,
                                        std::uint64_t start, std::uint64_t key) noexcept;

}  // namespace p2psgd
