// Payload encoding 1, bytes -> words, with every check that hostile bytes need.
//
// index_i = lowest + i + (zeros_i << k) + remainder_0 + ... + remainder_i, where zeros_i is the number of
// zero bits before the i-th one of the unary stream. So only the remainders need a running sum, and the unary
// stream expands a byte at a time through a table.
#include <array>

#include "bitpack.hpp"
#include "codec.hpp"
#include "paths.hpp"

namespace p2psgd::P2PSGD_PATH {
namespace {

struct UnaryByte {
    std::array<std::uint16_t, 8> zeros{};  // zero bits before its j-th one
    std::uint32_t ones = 0;
};

constexpr std::array<UnaryByte, 256> make_unary_bytes() noexcept {
    std::array<UnaryByte, 256> table{};
    for (unsigned byte = 0; byte < 256; ++byte) {
        for (unsigned bit = 0; bit < 8; ++bit) {
            if ((byte >> bit & 1) == 0) continue;
            table[byte].zeros[table[byte].ones] = static_cast<std::uint16_t>(bit - table[byte].ones);
            ++table[byte].ones;
        }
    }
    return table;
}

constexpr std::array<UnaryByte, 256> unary_bytes = make_unary_bytes();

// The quick path keeps zeros_i in 16 bits and indices in 32. Every block that our encoder writes qualifies
// but for parameters above 21 (gaps beyond 2 million): its unary stream has at most 3 * 512 bits.
constexpr std::size_t quick_unary_bytes = 65536 / 8;
constexpr unsigned quick_parameter_max = 21;  // 512 remainders below 2^21 add up to less than 2^30

struct Block {
    const std::uint8_t* at;   // the unary stream
    const std::uint8_t* end;  // of the payload
    std::size_t count;
    unsigned parameter;
    std::uint64_t lowest;  // the least index that its first word may have, at most weights
    std::uint64_t weights;
    const std::uint32_t* values;  // remainder << 1 | negative
};

// Each returns ok and moves block.at behind the block and block.lowest behind its last index; or a fault; or,
// the quick one only, output_too_small when the block needs the other.
Status read_quick(Block& block, std::uint32_t* words) noexcept {
    if (block.parameter > quick_parameter_max) return Status::output_too_small;
    alignas(16) std::uint16_t zeros[block_gaps + 8];
    const std::size_t available = static_cast<std::size_t>(block.end - block.at);
    const std::size_t limit = available < quick_unary_bytes ? available : quick_unary_bytes;
    std::size_t ones = 0;
    std::size_t byte = 0;
    for (; ones < block.count && byte < limit; ++byte) {
        const UnaryByte& entry = unary_bytes[block.at[byte]];
        const std::uint16_t before = static_cast<std::uint16_t>(8 * byte - ones);
        for (unsigned j = 0; j < 8; ++j)
            zeros[ones + j] = static_cast<std::uint16_t>(entry.zeros[j] + before);
        ones += entry.ones;
    }
    if (ones < block.count) return limit == available ? Status::truncated : Status::output_too_small;
    if (ones > block.count) return Status::padding_not_zero;
    const std::uint64_t least_last =
        block.lowest + block.count - 1 + (std::uint64_t{zeros[block.count - 1]} << block.parameter);
    if (least_last >= block.weights) return Status::index_out_of_range;
    // From here every index is below 2^31 + 2^30: no sum leaves 32 bits.
    std::uint32_t next = static_cast<std::uint32_t>(block.lowest);
    std::uint32_t index = 0;
    for (std::size_t i = 0; i < block.count; ++i, ++next) {
        next += block.values[i] >> 1;
        index = next + (std::uint32_t{zeros[i]} << block.parameter);
        words[i] = index << 1 | (block.values[i] & 1);
    }
    if (index >= block.weights) return Status::index_out_of_range;
    block.at += byte;
    block.lowest = std::uint64_t{index} + 1;
    return Status::ok;
}

Status read_any(Block& block, std::uint32_t* words) noexcept {
    unsigned pending = 0;  // the bits of the current byte that are not yet read
    unsigned pending_bits = 0;
    std::uint64_t index = block.lowest;
    for (std::size_t i = 0; i < block.count; ++i) {
        std::uint64_t quotient = 0;
        while (pending == 0) {
            quotient += pending_bits;
            if (quotient >= block.weights)
                return Status::index_out_of_range;  // also keeps the shift below within 2^55
            if (block.at == block.end) return Status::truncated;
            pending = *block.at++;
            pending_bits = 8;
        }
        const unsigned zeros = static_cast<unsigned>(std::countr_zero(pending));
        quotient += zeros;
        pending >>= zeros + 1;
        pending_bits -= zeros + 1;
        index += (quotient << block.parameter) + (block.values[i] >> 1);
        if (index >= block.weights) return Status::index_out_of_range;
        words[i] = static_cast<std::uint32_t>(index) << 1 | (block.values[i] & 1);
        ++index;
    }
    if (pending != 0) return Status::padding_not_zero;
    block.lowest = index;
    return Status::ok;
}

Status read_block(Block& block, std::uint32_t* words) noexcept {
    alignas(16) std::uint32_t values[block_gaps];
    if (block.at == block.end) return Status::truncated;
    const unsigned header = *block.at++;
    if (header > rice_max) return Status::parameter_out_of_range;
    block.parameter = header;
    const std::size_t groups = (block.count + group_values - 1) / group_values;
    const std::size_t values_bytes = groups * (block.parameter + 1);
    if (static_cast<std::size_t>(block.end - block.at) < values_bytes) return Status::truncated;
    unpack_by_parameter[block.parameter](block.at, groups, values);
    for (std::size_t i = block.count; i < groups * group_values; ++i) {
        if (values[i] != 0) return Status::padding_not_zero;
    }
    block.at += values_bytes;
    block.values = values;
    const Status status = read_quick(block, words);
    return status == Status::output_too_small ? read_any(block, words) : status;
}

}  // namespace

Outcome decode(const std::uint8_t* payload, std::size_t bytes, std::size_t count, std::uint64_t weights,
               std::uint32_t* words) noexcept {
    if (weights < 1 || weights > weights_max) return {Status::weights_out_of_range, 0};
    if (count < 1 || count > indices_max(weights)) return {Status::count_out_of_range, 0};
    Block block{payload, payload + bytes, 0, 0, 0, weights, nullptr};
    for (std::size_t begin = 0; begin < count; begin += block_gaps) {
        block.count = count - begin < block_gaps ? count - begin : block_gaps;
        const Status status = read_block(block, words + begin);
        if (status != Status::ok) return {status, begin / block_gaps};
    }
    if (block.at != block.end)
        return {Status::trailing_bytes, static_cast<std::uint64_t>(block.end - block.at)};
    return {Status::ok, 0};
}

}  // namespace p2psgd::P2PSGD_PATH
