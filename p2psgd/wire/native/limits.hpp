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
inline constexpr std::uint32_t step_max = std::uint32_t{1} << 20;  // quanta per update
// A small net may send the first many indices at once, if it has them; the second bounds an update's work.
inline constexpr std::uint64_t update_indices_floor = 1024;
inline constexpr std::uint64_t update_indices_ceiling = std::uint64_t{1} << 18;

// Most indices that one update may hold, for a net of `weights` weights (1..weights_max).
constexpr std::uint64_t indices_max(std::uint64_t weights) noexcept {
    std::uint64_t cap = weights / 4 > update_indices_floor ? weights / 4 : update_indices_floor;
    cap = cap < update_indices_ceiling ? cap : update_indices_ceiling;
    return cap < weights ? cap : weights;
}

}  // namespace p2psgd
