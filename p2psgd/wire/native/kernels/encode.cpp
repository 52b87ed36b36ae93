// Words -> payload bytes. Three vectorisable passes over a block (gaps, parameter, values), then
// two that pack bits, and a third where signs are coded.
#include <bit>

#include "bitpack.hpp"
#include "codec.hpp"
#include "dense.hpp"
#include "paths.hpp"
#include "signs.hpp"

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

std::uint8_t* put_quotients(const std::uint32_t* gaps, std::size_t count, unsigned parameter,
                            std::uint8_t* out) noexcept {
    BitWriter writer(out);
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
            for (std::size_t j = i; j < i + 4; ++j) writer.put_unary(gaps[j] >> parameter);
        }
    }
    for (; i < count; ++i) writer.put_unary(gaps[i] >> parameter);
    return writer.finish();
}

// A block on its way into the payload.
struct Block {
    const std::uint32_t* words;
    std::size_t count;
    std::uint32_t gaps[block_gaps];
    unsigned parameter;
    unsigned sign_mode;
    BlockBits changes, near;  // of sign, and of quotient 0
    Runs runs;                // set if the signs are coded

    unsigned width() const noexcept { return parameter + (sign_mode == plain_signs ? 1 : 0); }
    std::size_t groups() const noexcept { return (count + group_values - 1) / group_values; }
};

std::uint8_t* put_block(const Block& block, std::uint8_t* out) noexcept {
    const std::size_t groups = block.groups();
    *out++ = static_cast<std::uint8_t>(block.sign_mode << 5 | block.parameter);
    if (block.width() != 0) {
        alignas(32) std::uint32_t values[block_gaps];
        const std::uint32_t mask = (std::uint32_t{1} << block.parameter) - 1;
        if (block.sign_mode == plain_signs) {
            for (std::size_t i = 0; i < block.count; ++i)
                values[i] = (block.gaps[i] & mask) << 1 | (block.words[i] & 1);
        } else {
            for (std::size_t i = 0; i < block.count; ++i) values[i] = block.gaps[i] & mask;
        }
        for (std::size_t i = block.count; i < groups * group_values; ++i) values[i] = 0;
        pack_by_width[block.width() - 1](values, groups, out);
    }
    out = put_quotients(block.gaps, block.count, block.parameter, out + groups * block.width());
    if (block.sign_mode == plain_signs) return out;
    return put_signs(block.changes, block.near, block.count, block.runs, block.sign_mode, out);
}

void look_at_signs(Block& block) noexcept {
    const std::uint32_t* words = block.words;
    const std::uint32_t* gaps = block.gaps;
    const std::uint32_t limit = std::uint32_t{1} << block.parameter;
    block.changes = changes_of(collect(block.count, [=](std::size_t i) { return words[i] & 1; }));
    block.near = collect(block.count, [=](std::size_t i) { return gaps[i] < limit; });
    for (std::size_t i = 0; i < lanes; ++i) block.changes.lane[i] &= valid(block.count, i);
}

// What a block of these choices costs, in bytes; block.runs must be set if its signs are coded.
std::uint64_t bytes_of(const Block& block) noexcept {
    const std::uint64_t fixed = 1 + std::uint64_t{block.groups()} * block.width();
    const std::uint64_t quotients =
        cost(block.gaps, block.count, block.parameter) - block.parameter * block.count + block.count;
    std::uint64_t signs = 0;
    if (block.sign_mode != plain_signs)
        signs = runs_cost(block.runs, block.sign_mode) + block.count - population(block.near);
    return fixed + (quotients + 7) / 8 + (signs + 7) / 8;
}

// Takes the next block of words: its gaps from `lowest` on, which it moves behind the block's last index.
// False when the indices do not ascend.
bool take(Block& block, const std::uint32_t* words, std::size_t count, std::uint32_t& lowest) noexcept {
    block.words = words;
    block.count = count;
    if (!gaps_of(words, count, lowest, block.gaps)) return false;
    lowest = (words[count - 1] >> 1) + 1;
    return true;
}

Outcome check_words(const std::uint32_t* words, std::size_t count, std::uint64_t weights) noexcept {
    if (weights < 1 || weights > weights_max) return {Status::weights_out_of_range, 0};
    if (count < 1 || count > indices_max(weights)) return {Status::count_out_of_range, 0};
    if (words[count - 1] >> 1 >= weights) return {Status::index_out_of_range, count - 1};
    return {Status::ok, 0};
}

}  // namespace

Outcome encode(const std::uint32_t* words, std::size_t count, std::uint64_t weights, std::uint8_t* payload,
               std::size_t capacity, std::size_t* bytes) noexcept {
    const Outcome outcome = check_words(words, count, weights);
    if (outcome.status != Status::ok) return outcome;
    if (capacity < payload_bytes_max(count) + encode_slack) return {Status::output_too_small, 0};
    Block block;
    std::uint8_t* out = payload;
    std::uint32_t lowest = 0;  // the least index that the next word may have
    for (std::size_t begin = 0; begin < count; begin += block_gaps) {
        const std::size_t size = count - begin < block_gaps ? count - begin : block_gaps;
        const std::uint32_t first = lowest;
        if (!take(block, words + begin, size, lowest)) return {Status::not_sorted, begin / block_gaps};
        block.parameter = best_parameter(block.gaps, size, lowest - first - static_cast<std::uint32_t>(size));
        look_at_signs(block);
        block.sign_mode = best_sign_mode(block.changes, block.near, block.runs);
        out = put_block(block, out);
    }
    *bytes = static_cast<std::size_t>(out - payload);
    if (dense_bytes(weights) < *bytes) {
        put_dense(words, count, weights, payload);
        *bytes = static_cast<std::size_t>(dense_bytes(weights));
    }
    return {Status::ok, 0};
}

Outcome encode_as(const std::uint32_t* words, std::size_t count, std::uint64_t weights,
                  const std::uint8_t* headers, std::uint8_t* payload, std::size_t capacity,
                  std::size_t* bytes) noexcept {
    const Outcome outcome = check_words(words, count, weights);
    if (outcome.status != Status::ok) return outcome;
    Block block;
    std::uint8_t* out = payload;
    std::uint32_t lowest = 0;
    const bool dense = headers[0] == dense_header;
    if (dense && capacity < dense_bytes(weights) + encode_slack) return {Status::output_too_small, 0};
    for (std::size_t number = 0, begin = 0; begin < count; ++number, begin += block_gaps) {
        const std::size_t size = count - begin < block_gaps ? count - begin : block_gaps;
        if (!take(block, words + begin, size, lowest)) return {Status::not_sorted, number};
        if (dense) continue;
        block.parameter = headers[number] & 31;
        block.sign_mode = headers[number] >> 5;
        if (block.parameter > rice_max) return {Status::parameter_out_of_range, number};
        look_at_signs(block);
        if (block.sign_mode != plain_signs)
            find_runs(block.changes, block.near, population(block.near), block.runs);
        if (bytes_of(block) + encode_slack > capacity - static_cast<std::size_t>(out - payload))
            return {Status::output_too_small, number};
        out = put_block(block, out);
    }
    if (dense) {
        put_dense(words, count, weights, payload);
        out += dense_bytes(weights);
    }
    *bytes = static_cast<std::size_t>(out - payload);
    return {Status::ok, 0};
}

}  // namespace p2psgd::P2PSGD_PATH
