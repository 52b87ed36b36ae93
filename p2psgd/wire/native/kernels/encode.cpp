// Payload encoding 1, words -> bytes. Three vectorisable passes over a block (gaps, parameter, values), then
// two that pack bits.
#include <bit>

#include "bitpack.hpp"
#include "bytes.hpp"
#include "codec.hpp"
#include "paths.hpp"

namespace p2psgd::P2PSGD_PATH {
namespace {

// Fills gaps[0..count); false when the indices do not ascend strictly from `lowest` on.
bool gaps_of(const std::uint32_t* words, std::size_t count, std::uint32_t lowest,
             std::uint32_t* gaps) noexcept {
    // An index and lowest are at most 2^31: a negative difference shows as a set top bit, here and below.
    gaps[0] = (words[0] >> 1) - lowest;
    std::uint32_t signs = gaps[0];
    for (std::size_t i = 1; i < count; ++i) {
        gaps[i] = (words[i] >> 1) - (words[i - 1] >> 1) - 1;
        signs |= gaps[i];
    }
    return (signs >> 31) == 0;
}

// Bits of a block that depend on the parameter. The gaps add up to less than 2^31, so 32 bits hold every
// partial sum.
std::uint64_t cost(const std::uint32_t* gaps, std::size_t count, unsigned parameter) noexcept {
    std::uint32_t quotients = 0;
    for (std::size_t i = 0; i < count; ++i) quotients += gaps[i] >> parameter;
    return std::uint64_t{parameter} * count + quotients;
}

// The smallest parameter of the least cost. The cost is convex: cost(k + 1) - cost(k) = count - sum(ceil((gap
// >> k) / 2)) never falls; so it is enough to walk downhill from a guess (for geometric gaps the best 2^k is
// near mean * ln 2).
unsigned best_parameter(const std::uint32_t* gaps, std::size_t count, std::uint32_t gap_sum) noexcept {
    const std::uint64_t scaled = std::uint64_t{gap_sum} * 11 / (16 * count);
    unsigned parameter = scaled == 0 ? 0 : static_cast<unsigned>(std::bit_width(scaled)) - 1;
    if (parameter > rice_max) parameter = rice_max;
    std::uint64_t least = cost(gaps, count, parameter);
    const unsigned guess = parameter;
    while (parameter > 0) {
        const std::uint64_t lower = cost(gaps, count, parameter - 1);
        if (lower > least) break;
        least = lower;
        --parameter;
    }
    if (parameter != guess) return parameter;
    while (parameter < rice_max) {
        const std::uint64_t higher = cost(gaps, count, parameter + 1);
        if (higher >= least) break;
        least = higher;
        ++parameter;
    }
    return parameter;
}

class UnaryWriter {
  public:
    explicit UnaryWriter(std::uint8_t* out) noexcept : at_(out) {}

    // Appends the low `width` <= 56 bits of `bits`; writes up to 8 bytes beyond the stream's end.
    void put(std::uint64_t bits, unsigned width) noexcept {
        pending_ |= bits << pending_bits_;
        pending_bits_ += width;
        store64(at_, pending_);
        at_ += pending_bits_ >> 3;
        pending_ >>= pending_bits_ & ~7u;
        pending_bits_ &= 7;
    }

    void put_quotient(std::uint32_t quotient) noexcept {
        for (; quotient >= 48; quotient -= 48) put(0, 48);
        put(std::uint64_t{1} << quotient, quotient + 1);
    }

    // Pads to a byte; returns the end.
    std::uint8_t* finish() noexcept { return pending_bits_ == 0 ? at_ : at_ + 1; }

  private:
    std::uint8_t* at_;
    std::uint64_t pending_ = 0;
    unsigned pending_bits_ = 0;
};

std::uint8_t* put_quotients(const std::uint32_t* gaps, std::size_t count, unsigned parameter,
                            std::uint8_t* out) noexcept {
    UnaryWriter writer(out);
    std::size_t i = 0;
    for (; i + 4 <= count; i += 4) {  // four at once, unless together they are longer than one put() takes
        const std::uint32_t first = gaps[i] >> parameter;
        const std::uint32_t second = first + 1 + (gaps[i + 1] >> parameter);
        const std::uint32_t third = second + 1 + (gaps[i + 2] >> parameter);
        const std::uint32_t fourth = third + 1 + (gaps[i + 3] >> parameter);
        if (fourth < 56) {
            const std::uint64_t one = 1;
            writer.put(one << first | one << second | one << third | one << fourth, fourth + 1);
        } else {
            for (std::size_t j = i; j < i + 4; ++j) writer.put_quotient(gaps[j] >> parameter);
        }
    }
    for (; i < count; ++i) writer.put_quotient(gaps[i] >> parameter);
    return writer.finish();
}

std::uint8_t* put_block(const std::uint32_t* words, const std::uint32_t* gaps, std::size_t count,
                        unsigned parameter, std::uint8_t* out) noexcept {
    alignas(16) std::uint32_t values[block_gaps];
    const std::uint32_t mask = (std::uint32_t{1} << parameter) - 1;
    for (std::size_t i = 0; i < count; ++i) values[i] = (gaps[i] & mask) << 1 | (words[i] & 1);
    const std::size_t groups = (count + group_values - 1) / group_values;
    for (std::size_t i = count; i < groups * group_values; ++i) values[i] = 0;
    *out++ = static_cast<std::uint8_t>(parameter);
    pack_by_parameter[parameter](values, groups, out);
    return put_quotients(gaps, count, parameter, out + groups * (parameter + 1));
}

}  // namespace

Outcome encode(const std::uint32_t* words, std::size_t count, std::uint64_t weights, std::uint8_t* payload,
               std::size_t capacity, std::size_t* bytes) noexcept {
    if (weights < 1 || weights > weights_max) return {Status::weights_out_of_range, 0};
    if (count < 1 || count > indices_max(weights)) return {Status::count_out_of_range, 0};
    if (capacity < payload_bytes_max(count) + encode_slack) return {Status::output_too_small, 0};
    if (words[count - 1] >> 1 >= weights) return {Status::index_out_of_range, count - 1};
    alignas(16) std::uint32_t gaps[block_gaps];
    std::uint8_t* out = payload;
    std::uint32_t lowest = 0;  // the least index that the next word may have
    for (std::size_t begin = 0; begin < count; begin += block_gaps) {
        const std::size_t size = count - begin < block_gaps ? count - begin : block_gaps;
        const std::uint32_t* block = words + begin;
        if (!gaps_of(block, size, lowest, gaps)) return {Status::not_sorted, begin / block_gaps};
        const std::uint32_t next = (block[size - 1] >> 1) + 1;
        const std::uint32_t gap_sum = next - lowest - static_cast<std::uint32_t>(size);
        out = put_block(block, gaps, size, best_parameter(gaps, size, gap_sum), out);
        lowest = next;
    }
    *bytes = static_cast<std::size_t>(out - payload);
    return {Status::ok, 0};
}

}  // namespace p2psgd::P2PSGD_PATH
