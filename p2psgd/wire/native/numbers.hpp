// float32 numbers on their way around a ring: what has come is checked, a node's own added to it, and new
// weights are made of the sums. Each in one pass: fetching memory is what costs most.
#pragma once

#include <cstddef>
#include <cstdint>

namespace p2psgd {

// The CRC-32C of what came, and of what became of it; whether all of a node's own numbers are finite.
struct NumberChecks {
    std::uint32_t incoming;
    std::uint32_t sums;
    bool finite;
};

// sums[i] = incoming[i] + own[i] in float32, for i below count. `incoming` is in the bytes of a frame and may
// lie anywhere, also where the sums go; `own` may be `sums`.
using AddNumbers = NumberChecks(const std::uint8_t* incoming, const float* own, float* sums,
                                std::size_t count) noexcept;

// The same of numbers that go their way as they are: `incoming` is 0.
using CheckNumbers = NumberChecks(const float* own, std::size_t count) noexcept;

// numbers[i] = incoming[i]; returns the CRC-32C. `incoming` lies anywhere but in `numbers`.
using CopyNumbers = std::uint32_t(const std::uint8_t* incoming, float* numbers, std::size_t count) noexcept;

// The digests of coordinates that are the bits of float32 weights.
struct WeightDigests {
    std::uint64_t old;
    std::uint64_t next;
};

// next[i] = old[i] + sums[i] * factor, product and sum rounded to float32 each; the weights are those from
// `start` on. `next` lies apart from the others.
using MoveWeights = WeightDigests(const std::int32_t* old, const float* sums, float factor, std::int32_t* next,
                                  std::size_t count, std::uint64_t start, std::uint64_t key) noexcept;

}  // namespace p2psgd
