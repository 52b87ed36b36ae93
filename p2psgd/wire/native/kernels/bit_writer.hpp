// Appends bits to bytes, the least significant first.
#pragma once

#include <cstdint>

#include "bytes.hpp"

namespace p2psgd::P2PSGD_PATH {

class BitWriter {
  public:
    explicit BitWriter(std::uint8_t* out) noexcept : at_(out) {}

    // Appends the low `width` <= 56 bits of `bits`, the others must be zero; writes up to 8 bytes beyond the
    // end.
    void put(std::uint64_t bits, unsigned width) noexcept {
        pending_ |= bits << pending_bits_;
        pending_bits_ += width;
        store64(at_, pending_);
        at_ += pending_bits_ >> 3;
        pending_ >>= pending_bits_ & ~7u;
        pending_bits_ &= 7;
    }

    // `zeros` zero bits and a one.
    void put_unary(std::uint32_t zeros) noexcept {
        for (; zeros >= 48; zeros -= 48) put(0, 48);
        put(std::uint64_t{1} << zeros, zeros + 1);
    }

    // Pads to a byte; returns the end.
    std::uint8_t* finish() noexcept { return pending_bits_ == 0 ? at_ : at_ + 1; }

  private:
    std::uint8_t* at_;
    std::uint64_t pending_ = 0;
    unsigned pending_bits_ = 0;
};

}  // namespace p2psgd::P2PSGD_PATH
