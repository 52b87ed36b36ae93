// Payload bytes -> words, with every check that hostile bytes need.
//
// index_i = lowest + i + (zeros_i << k) + remainder_0 + ... + remainder_i, where zeros_i is the number of
// zero bits before the i-th one of the unary stream. So only the remainders need a running sum.
#include <bit>
#include <cstring>

#include "bitpack.hpp"
#include "codec.hpp"
#include "dense.hpp"
#include "paths.hpp"
#include "signs.hpp"
#include "unary.hpp"

#if defined(__AVX2__)
#include <immintrin.h>
#endif

namespace p2psgd::P2PSGD_PATH {
namespace {

// The quick path keeps zeros_i in 16 bits and indices in 32. Every block that our encoder writes qualifies
// but for parameters above 21 (gaps beyond 2 million): its unary stream has at most 3 * 512 bits.
constexpr unsigned quick_parameter_max = 21;  // 512 remainders below 2^21 add up to less than 2^30

struct Block {
    std::size_t count;
    unsigned parameter;
    unsigned sign_mode;
    std::uint64_t lowest;        // the least index that its first word may have, at most weights
    const std::uint8_t* packed;  // its values
    std::size_t groups;
    BlockBits negative;  // of coded signs

    unsigned width() const noexcept { return parameter + (sign_mode == plain_signs ? 1 : 0); }
};

// Whether the values that fill up the last group are zero.
bool filling_is_zero(const Block& block) noexcept {
    const std::size_t used = block.count % group_values;
    if (used == 0) return true;
    const std::size_t width = block.width();
    const std::uint8_t* group = block.packed + (block.groups - 1) * width;
    std::size_t byte = used * width / 8;
    if (byte == width) return true;  // values without bits
    if (group[byte] >> (used * width % 8) != 0) return false;
    for (++byte; byte < width; ++byte) {
        if (group[byte] != 0) return false;
    }
    return true;
}

void unpack(const Block& block, std::uint32_t* values) noexcept {
    if (block.width() == 0) {
        std::memset(values, 0, block.groups * group_values * sizeof *values);
    } else {
        unpack_by_width[block.width() - 1](block.packed, block.groups, values);
    }
}

#if defined(__AVX2__)

constexpr std::size_t overread = 32;  // bytes that the loads of a group may reach beyond it

// Eight values of one width from a group, by one byte shuffle in each half of a register and a shift in each
// lane.
class GroupReader {
  public:
    explicit GroupReader(unsigned width) noexcept : upper_(width / 2) {
        alignas(32) std::uint32_t shifts[8];
        alignas(32) std::uint8_t bytes[32];
        for (unsigned j = 0; j < 8; ++j) {
            const unsigned bit = j * width - (j < 4 ? 0 : 8 * upper_);
            shifts[j] = bit % 8;
            for (unsigned b = 0; b < 4; ++b) bytes[4 * j + b] = static_cast<std::uint8_t>(bit / 8 + b);
        }
        shifts_ = _mm256_load_si256(reinterpret_cast<const __m256i*>(shifts));
        bytes_ = _mm256_load_si256(reinterpret_cast<const __m256i*>(bytes));
        mask_ = _mm256_set1_epi32(static_cast<int>((1u << width) - 1));
    }

    __m256i read(const std::uint8_t* group) const noexcept {
        const __m128i low = _mm_loadu_si128(reinterpret_cast<const __m128i*>(group));
        const __m128i high = _mm_loadu_si128(reinterpret_cast<const __m128i*>(group + upper_));
        const __m256i both = _mm256_inserti128_si256(_mm256_castsi128_si256(low), high, 1);
        return _mm256_and_si256(_mm256_srlv_epi32(_mm256_shuffle_epi8(both, bytes_), shifts_), mask_);
    }

  private:
    unsigned upper_;  // byte in which the fifth value begins
    __m256i shifts_, bytes_, mask_;
};

// The running sum of eight values.
__m256i running_sum(__m256i v) noexcept {
    v = _mm256_add_epi32(v, _mm256_slli_si256(v, 4));
    v = _mm256_add_epi32(v, _mm256_slli_si256(v, 8));
    const __m256i lower = _mm256_permutevar8x32_epi32(v, _mm256_set1_epi32(3));
    return _mm256_add_epi32(v, _mm256_blend_epi32(_mm256_setzero_si256(), lower, 0xF0));
}

template <bool coded>
std::uint32_t combine(const Block& block, const Zeros& zeros, const std::uint8_t* packed,
                      std::uint32_t* words) noexcept {
    const GroupReader reader(block.width());
    const __m256i last = _mm256_set1_epi32(7), eight = _mm256_set1_epi32(8), one = _mm256_set1_epi32(1);
    const __m256i places = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    const __m128i parameter = _mm_cvtsi32_si128(static_cast<int>(block.parameter));
    __m256i next =
        _mm256_add_epi32(_mm256_set1_epi32(static_cast<int>(block.lowest)), places);  // without quotients
    __m256i before = _mm256_setzero_si256();  // sum of the remainders so far
    __m256i index = before;  // of the last group; kept because a word has no room for its top bit
    const auto group = [&](std::size_t i) {
        __m256i value = reader.read(packed + i / 8 * block.width());
        __m256i negative;
        if constexpr (coded) {
            const int byte = static_cast<int>(block.negative.lane[i / 64] >> (i % 64) & 0xFF);
            negative = _mm256_and_si256(_mm256_srlv_epi32(_mm256_set1_epi32(byte), places), one);
        } else {
            negative = _mm256_and_si256(value, one);
            value = _mm256_srli_epi32(value, 1);
        }
        const __m256i sums = _mm256_add_epi32(running_sum(value), before);
        before = _mm256_permutevar8x32_epi32(sums, last);
        const __m256i above = _mm256_sll_epi32(
            _mm256_cvtepu16_epi32(_mm_load_si128(reinterpret_cast<const __m128i*>(zeros.data() + i))),
            parameter);
        index = _mm256_add_epi32(_mm256_add_epi32(above, sums), next);
        next = _mm256_add_epi32(next, eight);
        return _mm256_or_si256(_mm256_add_epi32(index, index), negative);
    };
    std::size_t i = 0;
    for (; i + 8 <= block.count; i += 8) _mm256_storeu_si256(reinterpret_cast<__m256i*>(words + i), group(i));
    if (i < block.count) {
        alignas(32) std::uint32_t rest[8];
        _mm256_store_si256(reinterpret_cast<__m256i*>(rest), group(i));
        std::memcpy(words + i, rest, (block.count - i) * sizeof *rest);
    }
    alignas(32) std::uint32_t indices[8];
    _mm256_store_si256(reinterpret_cast<__m256i*>(indices), index);
    return indices[(block.count - 1) % 8];
}

// Returns the last index.
std::uint32_t combine_quick(const Block& block, const std::uint8_t* end, const Zeros& zeros,
                            std::uint32_t* words) noexcept {
    const std::uint8_t* packed = block.packed;
    std::uint8_t copy[block_gaps / group_values * width_max + overread];
    const std::size_t bytes = block.groups * block.width();
    if (static_cast<std::size_t>(end - packed) < bytes + overread) {
        std::memcpy(copy, packed, bytes);
        std::memset(copy + bytes, 0, overread);
        packed = copy;
    }
    return block.sign_mode == plain_signs ? combine<false>(block, zeros, packed, words)
                                          : combine<true>(block, zeros, packed, words);
}

#else

std::uint32_t combine_quick(const Block& block, const std::uint8_t*, const Zeros& zeros,
                            std::uint32_t* words) noexcept {
    alignas(16) std::uint32_t values[block_gaps];
    unpack(block, values);
    const std::uint16_t* z = zeros.data();
    std::uint32_t next = static_cast<std::uint32_t>(block.lowest);
    std::uint32_t index = 0;
    if (block.sign_mode == plain_signs) {
        for (std::size_t i = 0; i < block.count; ++i, ++next) {
            next += values[i] >> 1;
            index = next + (std::uint32_t{z[i]} << block.parameter);
            words[i] = index << 1 | (values[i] & 1);
        }
    } else {
        for (std::size_t i = 0; i < block.count; ++i, ++next) {
            next += values[i];
            index = next + (std::uint32_t{z[i]} << block.parameter);
            words[i] = index << 1 | static_cast<std::uint32_t>(block.negative.test(i));
        }
    }
    return index;
}

#endif

// What both ways of reading a block take: where the reader stands, and what of the payload is left.
struct Reader {
    const std::uint8_t* at;
    const std::uint8_t* end;
    std::uint64_t weights;
    PayloadBits bits;

    std::size_t left() const noexcept { return static_cast<std::size_t>(end - at); }
};

Status read_signs_of(Reader& reader, Block& block, const BlockBits& near) noexcept {
    if (block.sign_mode == plain_signs) return Status::ok;
    const std::uint8_t* begin = reader.at;
    const Status status =
        read_signs(reader.at, reader.end, near, block.count, block.sign_mode, block.negative);
    reader.bits.sign += 8 * static_cast<std::uint64_t>(reader.at - begin);
    return status;
}

// Each returns ok and moves reader.at behind the block and block.lowest behind its last index; or a fault;
// or, the quick one only, output_too_small when the block needs the other.
Status read_quick(Reader& reader, Block& block, std::uint32_t* words) noexcept {
    if (block.parameter > quick_parameter_max) return Status::output_too_small;
    Zeros zeros;
    const std::uint8_t* begin = reader.at;
    Status status = expand_unary(reader.at, reader.end, block.count, zeros);
    if (status != Status::ok) return status;
    reader.bits.quotient += 8 * static_cast<std::uint64_t>(reader.at - begin);
    if (block.sign_mode != plain_signs) {
        status = read_signs_of(reader, block, near_words(zeros, block.count));
        if (status != Status::ok) return status;
    }
    const std::uint64_t least_last =
        block.lowest + block.count - 1 + (std::uint64_t{zeros[block.count - 1]} << block.parameter);
    if (least_last >= reader.weights) return Status::index_out_of_range;
    // From here every index is below 2^31 + 2^30: no sum leaves 32 bits.
    const std::uint32_t index = combine_quick(block, reader.end, zeros, words);
    if (index >= reader.weights) return Status::index_out_of_range;
    block.lowest = std::uint64_t{index} + 1;
    return Status::ok;
}

// Reads one quotient; `pending` are the bits of the current byte that are not yet read.
Status read_quotient(Reader& reader, unsigned& pending, unsigned& pending_bits,
                     std::uint64_t& quotient) noexcept {
    quotient = 0;
    while (pending == 0) {
        quotient += pending_bits;
        if (quotient >= reader.weights) return Status::index_out_of_range;
        if (reader.at == reader.end) return Status::truncated;
        pending = *reader.at++;
        pending_bits = 8;
    }
    const unsigned zeros = static_cast<unsigned>(std::countr_zero(pending));
    quotient += zeros;
    pending >>= zeros + 1;
    pending_bits -= zeros + 1;
    return Status::ok;
}

Status read_any(Reader& reader, Block& block, std::uint32_t* words) noexcept {
    std::uint32_t values[block_gaps];
    unpack(block, values);
    const bool plain = block.sign_mode == plain_signs;
    const std::uint8_t* begin = reader.at;
    unsigned pending = 0;
    unsigned pending_bits = 0;
    BlockBits near;
    std::uint64_t index = block.lowest;
    for (std::size_t i = 0; i < block.count; ++i) {
        std::uint64_t quotient = 0;
        const Status status = read_quotient(reader, pending, pending_bits, quotient);
        if (status != Status::ok) return status;
        if (quotient == 0) near.set(i);
        index += (quotient << block.parameter) + (plain ? values[i] >> 1 : values[i]);  // below 2^56
        if (index >= reader.weights) return Status::index_out_of_range;
        words[i] = static_cast<std::uint32_t>(index) << 1 | (plain ? values[i] & 1 : 0);
        ++index;
    }
    if (pending != 0) return Status::padding_not_zero;
    reader.bits.quotient += 8 * static_cast<std::uint64_t>(reader.at - begin);
    block.lowest = index;
    const Status status = read_signs_of(reader, block, near);
    for (std::size_t i = 0; i < block.count && !plain; ++i)
        words[i] |= static_cast<std::uint32_t>(block.negative.test(i));
    return status;
}

Status read_block(Reader& reader, Block& block, std::uint32_t* words) noexcept {
    if (reader.at == reader.end) return Status::truncated;
    const unsigned header = *reader.at++;
    block.parameter = header & 31;
    block.sign_mode = header >> 5;
    if (block.parameter > rice_max) return Status::parameter_out_of_range;
    block.groups = (block.count + group_values - 1) / group_values;
    const std::size_t bytes = block.groups * block.width();
    if (reader.left() < bytes) return Status::truncated;
    block.packed = reader.at;
    if (!filling_is_zero(block)) return Status::padding_not_zero;
    reader.at += bytes;
    const bool plain = block.sign_mode == plain_signs;
    reader.bits.header += 8;
    reader.bits.remainder += 8 * block.groups * block.parameter;
    reader.bits.sign += plain ? 8 * block.groups : 0;
    reader.bits.blocks += 1;
    reader.bits.sign_coded_blocks += plain ? 0 : 1;
    const Status status = read_quick(reader, block, words);
    return status == Status::output_too_small ? read_any(reader, block, words) : status;
}

// Words go to `words`, `stride` words from block to block: 512 to keep them, 0 for a room of 512 that all
// share.
Outcome read_blocks(Reader& reader, std::size_t count, std::uint32_t* words, std::size_t stride,
                    std::uint8_t* headers) noexcept {
    Block block{};
    for (std::size_t number = 0, begin = 0; begin < count; ++number, begin += block_gaps) {
        block.count = count - begin < block_gaps ? count - begin : block_gaps;
        if (headers != nullptr && reader.at != reader.end) headers[number] = *reader.at;
        const Status status = read_block(reader, block, words + number * stride);
        if (status != Status::ok) return {status, number};
    }
    if (reader.at != reader.end) return {Status::trailing_bytes, reader.left()};
    return {Status::ok, 0};
}

Outcome check_numbers(std::size_t count, std::uint64_t weights) noexcept {
    if (weights < 1 || weights > weights_max) return {Status::weights_out_of_range, 0};
    if (count < 1 || count > indices_max(weights)) return {Status::count_out_of_range, 0};
    return {Status::ok, 0};
}

}  // namespace

Outcome decode(const std::uint8_t* payload, std::size_t bytes, std::size_t count, std::uint64_t weights,
               std::uint32_t* words) noexcept {
    const Outcome outcome = check_numbers(count, weights);
    if (outcome.status != Status::ok) return outcome;
    if (bytes > 0 && payload[0] == dense_header) return read_dense(payload, bytes, count, weights, words);
    Reader reader{payload, payload + bytes, weights, {}};
    return read_blocks(reader, count, words, block_gaps, nullptr);
}

Outcome measure(const std::uint8_t* payload, std::size_t bytes, std::size_t count, std::uint64_t weights,
                PayloadBits* bits, std::uint8_t* headers) noexcept {
    Outcome outcome = check_numbers(count, weights);
    if (outcome.status != Status::ok) return outcome;
    if (bytes > 0 && payload[0] == dense_header) {
        if (headers != nullptr) headers[0] = dense_header;
        outcome = read_dense(payload, bytes, count, weights, nullptr);
        *bits = {};
        bits->header = 8;
        bits->dense = 8 * (bytes - 1);
        return outcome;
    }
    std::uint32_t words[block_gaps];
    Reader reader{payload, payload + bytes, weights, {}};
    outcome = read_blocks(reader, count, words, 0, headers);
    *bits = reader.bits;
    return outcome;
}

}  // namespace p2psgd::P2PSGD_PATH
