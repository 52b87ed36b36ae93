// The limits of wire format 1 (SPEC.md, section "Limits"): every array bound and every overflow argument
// rests on these numbers.
#pragma once

#include <cstddef>
#include <cstdint>

namespace p2psgd {

// An index is 31 bits, so that a word is 32 with its sign.
inline constexpr std::uint64_t weights_max = std::uint64_t{1} << 31;
inline constexpr std::size_t block_gaps = 512;  // gaps per payload block
inline constexpr unsigned rice_max = 24;        // a (24 + 1)-bit value at any bit offset fits a 32-bit load
inline constexpr unsigned sign_rice_max = 7;    // the sign mode of a block header has three bits, 0 is plain
inline constexpr std::uint8_t dense_header = 0x1F;                           // as the first byte of a payload
inline constexpr unsigned dense_digits = 5;                                  // of base 3 in a byte: 3^5 = 243
inline constexpr std::uint32_t step_max = std::uint32_t{1} << 20;            // quanta per update
inline constexpr std::uint64_t update_indices_max = std::uint64_t{1} << 18;  // bounds an update's work

// Most indices that one update may hold, for a net of `weights` weights (1..weights_max).
constexpr std::uint64_t indices_max(std::uint64_t weights) noexcept {
    return weights < update_indices_max ? weights : update_indices_max;
}

}  // namespace p2psgd
