// float32 numbers on their way around a ring: adding a node's own to what has come.
#pragma once

#include <cstddef>
#include <cstdint>

namespace p2psgd {

// sums[i] = incoming[i] + own[i] in float32, for i below count; returns the CRC-32C of the sums. `incoming` is
// in the bytes of a frame and may lie anywhere, also where the sums go; `own` may be `sums`.
using AddNumbers = std::uint32_t(const std::uint8_t* incoming, const float* own, float* sums,
                                 std::size_t count) noexcept;

}  // namespace p2psgd
