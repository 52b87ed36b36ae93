// The signs section of a block: the sign changes of near words as runs, those of far words as plain bits
// (SPEC.md, section "Payload"; a word is near when its quotient is 0).
//
// In a net's row, the weights into one unit, most updates have one sign, that of the unit's error. A near
// word is mostly in the row of the word before it; a far one is not, and its sign is as good as a coin.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "bit_writer.hpp"
#include "block_bits.hpp"
#include "bytes.hpp"
#include "status.hpp"

namespace p2psgd::P2PSGD_PATH {

inline constexpr unsigned plain_signs = 0;

// The runs of zeros before each one of the near words' changes, and the run to the end.
struct Runs {
    std::size_t count = 0;
    std::uint16_t zeros[block_gaps + 1];
};

inline std::size_t population(const BlockBits& bits) noexcept {
    std::size_t ones = 0;
    for (const std::uint64_t lane : bits.lane) ones += static_cast<std::size_t>(std::popcount(lane));
    return ones;
}

inline void find_runs(const BlockBits& changes, const BlockBits& near, std::size_t near_count,
                      Runs& runs) noexcept {
    std::uint32_t next = 0;  // the position after the last one, among the near words
    std::uint32_t begin = 0;
    std::size_t count = 0;
    for (std::size_t i = 0; i < lanes; ++i) {
#if defined(__BMI2__)
        std::uint64_t ones = compress(changes.lane[i], near.lane[i]);
        const std::uint64_t all = ~std::uint64_t{0};
#else
        std::uint64_t ones = changes.lane[i] & near.lane[i];
        const std::uint64_t all = near.lane[i];
#endif
        for (; ones != 0; ones &= ones - 1) {
            const std::uint64_t before = (ones & (~ones + 1)) - 1;  // the bits below the lowest one
            const std::uint32_t at = begin + static_cast<std::uint32_t>(std::popcount(before & all));
            runs.zeros[count++] = static_cast<std::uint16_t>(at - next);
            next = at + 1;
        }
        begin += static_cast<std::uint32_t>(std::popcount(near.lane[i]));
    }
    runs.zeros[count++] = static_cast<std::uint16_t>(near_count - next);
    runs.count = count;
}

inline std::size_t runs_cost(const Runs& runs, unsigned mode) noexcept {
    std::uint32_t quotients = 0;
    for (std::size_t i = 0; i < runs.count; ++i)
        quotients += static_cast<std::uint32_t>(runs.zeros[i]) >> mode;
    return runs.count * (mode + 1) + quotients;
}

// The sign mode that SPEC.md prescribes, with its runs if it is not plain_signs.
//
// Mode m is chosen for costing the near words fewer bits than one each: R + C - 1 for C runs that hold R
// zeros. It costs C * (m + 1) + sum(zeros >> m), and with A runs without a zero the sum is at least (R - (2^m
// - 1) * (C - A)) / 2^m. So m cannot win unless C * (m - f) + A * f < R * f - 1 with f = 1 - 2^-m, which
// fails for every m if C + A >= R - 2: signs that are as good as coins are plain without a look at their
// runs. Neighbours that both change make a run without a zero.
inline unsigned best_sign_mode(const BlockBits& changes, const BlockBits& near, Runs& runs) noexcept {
    const std::size_t near_count = population(near);
    std::size_t ones = 0, adjacent = 0;
    for (std::size_t i = 0; i < lanes; ++i) {
        const std::uint64_t both = changes.lane[i] & near.lane[i];
        ones += static_cast<std::size_t>(std::popcount(both));
        adjacent += static_cast<std::size_t>(std::popcount(both & both << 1));
    }
    if (2 * ones + adjacent + 3 >= near_count) return plain_signs;
    find_runs(changes, near, near_count, runs);
    unsigned mode = 1;
    std::size_t least = runs_cost(runs, mode);
    for (; mode < sign_rice_max; ++mode) {  // convex, as for gaps
        const std::size_t higher = runs_cost(runs, mode + 1);
        if (higher >= least) break;
        least = higher;
    }
    return least < near_count ? mode : plain_signs;
}

// Writes up to 8 bytes beyond the section; returns its end.
inline std::uint8_t* put_signs(const BlockBits& changes, const BlockBits& near, std::size_t count,
                               const Runs& runs, unsigned mode, std::uint8_t* out) noexcept {
    BitWriter writer(out);
    const std::uint32_t mask = (1u << mode) - 1;
    for (std::size_t i = 0; i < runs.count; ++i) {
        writer.put_unary(static_cast<std::uint32_t>(runs.zeros[i]) >> mode);
        writer.put(runs.zeros[i] & mask, mode);
    }
    for (std::size_t i = 0; i < lanes; ++i) {
        const std::uint64_t far = ~near.lane[i] & valid(count, i);
        const std::uint64_t bits = compress(changes.lane[i], far);
        const unsigned width = static_cast<unsigned>(std::popcount(far));
        writer.put(bits & 0xFFFFFFFF, width < 32 ? width : 32);
        if (width > 32) writer.put(bits >> 32, width - 32);
    }
    return writer.finish();
}

// Reads bits from memory that may be read 8 bytes beyond its last bit.
class BitReader {
  public:
    explicit BitReader(const std::uint8_t* in) noexcept : in_(in) {}

    // The next bits, 57 of them valid.
    std::uint64_t peek() const noexcept { return load64(in_ + (at_ >> 3)) >> (at_ & 7); }
    void skip(std::size_t bits) noexcept { at_ += bits; }
    std::uint64_t take(unsigned width) noexcept {  // up to 57
        const std::uint64_t bits = peek() & ((std::uint64_t{1} << width) - 1);
        at_ += width;
        return bits;
    }
    std::size_t bits() const noexcept { return at_; }

  private:
    const std::uint8_t* in_;
    std::size_t at_ = 0;  // in bits
};

// The longest section that does not fault, and 8 bytes: each near word at most mode + 2 bits (a one for each
// change and the end, a zero for each 2^mode zeros), each far one 1.
inline constexpr std::size_t signs_bytes_max = (block_gaps * (sign_rice_max + 2) + 16) / 8 + 8;

// Reads the section at *at, before `end`, and gives each word's sign; moves *at behind it. `near` has no bit
// at or above count.
inline Status read_signs(const std::uint8_t*& at, const std::uint8_t* end, const BlockBits& near,
                         std::size_t count, unsigned mode, BlockBits& negative) noexcept {
    const std::size_t available = static_cast<std::size_t>(end - at);
    std::uint8_t copy[signs_bytes_max] = {};  // of a section near the payload's end, with zeros to read on
    const std::uint8_t* in = at;
    if (available < signs_bytes_max) {
        std::memcpy(copy, at, available);
        in = copy;
    }
    const std::size_t near_count = population(near);
    const std::size_t quotient_max = near_count >> mode;
    BitReader reader(in);
    BlockBits ones;  // by position among the near words
    for (std::size_t next = 0;; ++next) {
        std::size_t quotient = 0;
        std::uint64_t bits = reader.peek() & 0x1FFFFFFFFFFFFFF;
        while (bits == 0) {
            quotient += 57;
            reader.skip(57);
            if (quotient > quotient_max) break;
            bits = reader.peek() & 0x1FFFFFFFFFFFFFF;
        }
        if (quotient > quotient_max)
            return reader.bits() > 8 * available ? Status::truncated : Status::run_out_of_range;
        const unsigned zeros = static_cast<unsigned>(std::countr_zero(bits));
        quotient += zeros;
        if (zeros + 1 + mode <= 57) {
            next += quotient << mode | (bits >> (zeros + 1) & ((1u << mode) - 1));
            reader.skip(zeros + 1 + mode);
        } else {
            reader.skip(zeros + 1);
            next += quotient << mode | reader.take(mode);
        }
        if (next >= near_count) {
            if (next > near_count)
                return reader.bits() > 8 * available ? Status::truncated : Status::run_out_of_range;
            break;
        }
        ones.set(next);
    }
    BlockBits changes;
    std::size_t begin = 0;  // of a lane's near words
    for (std::size_t i = 0; i < lanes; ++i) {
        const std::uint64_t low = ones.lane[begin / 64] >> (begin % 64);
        const std::uint64_t high =
            begin % 64 != 0 && begin / 64 + 1 < lanes ? ones.lane[begin / 64 + 1] << (64 - begin % 64) : 0;
        const std::uint64_t far = ~near.lane[i] & valid(count, i);
        const unsigned width = static_cast<unsigned>(std::popcount(far));
        std::uint64_t plain = reader.take(width < 32 ? width : 32);
        if (width > 32) plain |= reader.take(width - 32) << 32;
        changes.lane[i] = deposit(low | high, near.lane[i]) | deposit(plain, far);
        begin += static_cast<std::size_t>(std::popcount(near.lane[i]));
    }
    const std::size_t bytes = (reader.bits() + 7) / 8;
    if (bytes > available) return Status::truncated;
    if (reader.bits() % 8 != 0 && in[bytes - 1] >> (reader.bits() % 8) != 0) return Status::padding_not_zero;
    at += bytes;
    negative = without_changes(changes);
    return Status::ok;
}

}  // namespace p2psgd::P2PSGD_PATH
