// The quotients of a block: a stream of `quotient` zero bits and a one for each word, expanded a byte at a
// time through a table.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "block_bits.hpp"
#include "bytes.hpp"
#include "status.hpp"

namespace p2psgd::P2PSGD_PATH {

struct alignas(16) UnaryByte {
    std::array<std::uint16_t, 8> zeros{};  // zero bits before its j-th one
};

constexpr std::array<UnaryByte, 256> make_unary_bytes() noexcept {
    std::array<UnaryByte, 256> table{};
    for (unsigned byte = 0; byte < 256; ++byte) {
        unsigned ones = 0;
        for (unsigned bit = 0; bit < 8; ++bit) {
            if ((byte >> bit & 1) == 0) continue;
            table[byte].zeros[ones] = static_cast<std::uint16_t>(bit - ones);
            ++ones;
        }
    }
    return table;
}

inline constexpr std::array<UnaryByte, 256> unary_bytes = make_unary_bytes();

// How many zero bits stand before the i-th one, in 16 bits; zeros[-1] is 0.
class Zeros {
  public:
    const std::uint16_t* data() const noexcept { return zeros_ + lead; }
    std::uint16_t operator[](std::size_t i) const noexcept { return zeros_[lead + i]; }

    // Writes those of one byte, which begins `before` zero bits and `ones` ones into the stream.
    void put(std::uint8_t byte, std::size_t ones, std::uint16_t before) noexcept {
        std::uint16_t* out = zeros_ + lead + ones;
        for (unsigned j = 0; j < 8; ++j)
            out[j] = static_cast<std::uint16_t>(unary_bytes[byte].zeros[j] + before);
    }

  private:
    static constexpr std::size_t lead = 16;  // keeps the first word aligned to 32 bytes
    alignas(32) std::uint16_t zeros_[lead + block_gaps + 16] = {};
};

// A longer stream than this does not fit 16 bits, and is for the slow path.
inline constexpr std::size_t quick_unary_bytes = 65536 / 8;

// Expands `count` quotients from *at, before `end`, and moves *at behind them. output_too_small: the stream
// is too long.
inline Status expand_unary(const std::uint8_t*& at, const std::uint8_t* end, std::size_t count,
                           Zeros& zeros) noexcept {
    const std::size_t available = static_cast<std::size_t>(end - at);
    const std::size_t limit = available < quick_unary_bytes ? available : quick_unary_bytes;
    std::size_t ones = 0;
    std::size_t byte = 0;
    while (ones + 64 <= count && byte + 8 <= limit) {
        const std::uint64_t chunk = load64(at + byte);
        std::size_t place = ones;
        for (unsigned j = 0; j < 8; ++j) {
            const std::uint8_t bits = static_cast<std::uint8_t>(chunk >> (8 * j));
            zeros.put(bits, place, static_cast<std::uint16_t>(8 * (byte + j) - place));
            place += static_cast<std::size_t>(std::popcount(bits));
        }
        ones = place;
        byte += 8;
    }
    for (; ones < count && byte < limit; ++byte) {
        zeros.put(at[byte], ones, static_cast<std::uint16_t>(8 * byte - ones));
        ones += static_cast<std::size_t>(std::popcount(at[byte]));
    }
    if (ones < count) return limit == available ? Status::truncated : Status::output_too_small;
    if (ones > count) return Status::padding_not_zero;
    at += byte;
    return Status::ok;
}

// The words whose quotient is 0, of the first `count`.
inline BlockBits near_words(const Zeros& zeros, std::size_t count) noexcept {
    const std::uint16_t* z = zeros.data();
    const std::uint16_t* before = z - 1;  // not z[i - 1]: 0 - 1 is a large number
    return collect(count, [z, before](std::size_t i) { return z[i] == before[i]; });
}

}  // namespace p2psgd::P2PSGD_PATH
