// Digests. Six terms a round in the AVX2 paths: four in a vector and two in general registers, whose
// multipliers the vector leaves idle. AVX2 has no 64-bit multiplication, so four alone gain little; on a Zen
// 4 core the mixture is 1.5 (words) and 1.8 times (coordinates) as fast as the plain loop.
#include "digest.hpp"

#if defined(__AVX2__)
#include <immintrin.h>
#endif

#include "paths.hpp"

namespace p2psgd::P2PSGD_PATH {
namespace {

std::uint64_t term_of_word(std::uint32_t word, std::uint64_t key) noexcept {
    const std::uint64_t negative = -static_cast<std::uint64_t>(word & 1);  // all ones for a minus
    return (index_hash(word >> 1, key) ^ negative) - negative;
}

std::uint64_t term_of_coordinate(std::int32_t coordinate, std::uint64_t index, std::uint64_t key) noexcept {
    return static_cast<std::uint64_t>(std::int64_t{coordinate}) * index_hash(index, key);
}

// Holds the compiler back from vectors: with the multiplications of SSE2 a term takes twice as long.
inline void keep_scalar(std::uint64_t& sum) noexcept { asm("" : "+r"(sum)); }

// Each adds the terms of the leading whole rounds to *sum and returns how many terms they were.
#if defined(__AVX2__)

constexpr std::size_t lanes = 4;
constexpr std::size_t round_terms = lanes + 2;

inline __m256i all(std::uint64_t value) noexcept { return _mm256_set1_epi64x(static_cast<long long>(value)); }

// The low halves of x * y: low * low, plus low * high and high * low in the upper half.
inline __m256i multiply(__m256i x, std::uint64_t y) noexcept {
    const __m256i crossed = _mm256_mullo_epi32(x, all(y << 32 | y >> 32));
    const __m256i upper = _mm256_add_epi32(crossed, _mm256_slli_epi64(crossed, 32));
    return _mm256_add_epi64(_mm256_mul_epu32(x, all(y)),
                            _mm256_and_si256(upper, all(~std::uint64_t{0} << 32)));
}

// index_hash, from z = key + (index + 1) * golden on.
inline __m256i hash_from(__m256i z) noexcept {
    z = multiply(_mm256_xor_si256(z, _mm256_srli_epi64(z, 30)), 0xBF58476D1CE4E5B9u);
    z = multiply(_mm256_xor_si256(z, _mm256_srli_epi64(z, 27)), 0x94D049BB133111EBu);
    return _mm256_or_si256(_mm256_xor_si256(z, _mm256_srli_epi64(z, 31)), all(1));
}

inline std::uint64_t sum_of_lanes(__m256i sums) noexcept {
    alignas(32) std::uint64_t lane[lanes];
    _mm256_store_si256(reinterpret_cast<__m256i*>(lane), sums);
    return lane[0] + lane[1] + lane[2] + lane[3];
}

std::size_t add_rounds(const std::uint32_t* words, std::size_t count, std::uint64_t key,
                       std::uint64_t* sum) noexcept {
    const __m256i first = all(key + index_golden);
    __m256i sums = _mm256_setzero_si256();
    std::size_t i = 0;
    for (; i + round_terms <= count; i += round_terms) {
        const __m256i word =
            _mm256_cvtepu32_epi64(_mm_loadu_si128(reinterpret_cast<const __m128i*>(words + i)));
        const __m256i hash =
            hash_from(_mm256_add_epi64(first, multiply(_mm256_srli_epi64(word, 1), index_golden)));
        const __m256i negative = _mm256_sub_epi64(_mm256_setzero_si256(), _mm256_and_si256(word, all(1)));
        sums = _mm256_add_epi64(sums, _mm256_sub_epi64(_mm256_xor_si256(hash, negative), negative));
        *sum += term_of_word(words[i + lanes], key);
        *sum += term_of_word(words[i + lanes + 1], key);
    }
    *sum += sum_of_lanes(sums);
    return i;
}

std::size_t add_rounds(const std::int32_t* coordinates, std::size_t count, std::uint64_t start,
                       std::uint64_t key, std::uint64_t* sum) noexcept {
    const std::uint64_t first = key + (start + 1) * index_golden;
    const __m256i each =
        _mm256_set_epi64x(static_cast<long long>(3 * index_golden), static_cast<long long>(2 * index_golden),
                          static_cast<long long>(index_golden), 0);
    __m256i z = _mm256_add_epi64(all(first), each);
    __m256i sums = _mm256_setzero_si256();
    std::size_t i = 0;
    for (; i + round_terms <= count; i += round_terms) {
        const __m256i hash = hash_from(z);
        z = _mm256_add_epi64(z, all(round_terms * index_golden));
        const __m256i coordinate =
            _mm256_cvtepi32_epi64(_mm_loadu_si128(reinterpret_cast<const __m128i*>(coordinates + i)));
        // The upper half of a coordinate is all ones if it is negative, and then takes away low << 32.
        const __m256i low = _mm256_mul_epu32(coordinate, hash);
        const __m256i crossed = _mm256_mul_epu32(coordinate, _mm256_srli_epi64(hash, 32));
        const __m256i taken = _mm256_and_si256(_mm256_srai_epi32(coordinate, 31), hash);
        const __m256i upper = _mm256_slli_epi64(_mm256_sub_epi64(crossed, taken), 32);
        sums = _mm256_add_epi64(sums, _mm256_add_epi64(low, upper));
        *sum += term_of_coordinate(coordinates[i + lanes], start + i + lanes, key);
        *sum += term_of_coordinate(coordinates[i + lanes + 1], start + i + lanes + 1, key);
    }
    *sum += sum_of_lanes(sums);
    return i;
}

#else

std::size_t add_rounds(const std::uint32_t*, std::size_t, std::uint64_t, std::uint64_t*) noexcept {
    return 0;
}

std::size_t add_rounds(const std::int32_t*, std::size_t, std::uint64_t, std::uint64_t,
                       std::uint64_t*) noexcept {
    return 0;
}

#endif

}  // namespace

std::uint64_t digest_words(const std::uint32_t* words, std::size_t count, std::uint32_t step,
                           std::uint64_t key) noexcept {
    std::uint64_t sum = 0;
    for (std::size_t i = add_rounds(words, count, key, &sum); i < count; ++i) {
        sum += term_of_word(words[i], key);
        keep_scalar(sum);
    }
    return sum * step;
}

std::uint64_t digest_coordinates(const std::int32_t* coordinates, std::size_t count, std::uint64_t start,
                                 std::uint64_t key) noexcept {
    std::uint64_t sum = 0;
    for (std::size_t i = add_rounds(coordinates, count, start, key, &sum); i < count; ++i) {
        sum += term_of_coordinate(coordinates[i], start + i, key);
        keep_scalar(sum);
    }
    return sum;
}

}  // namespace p2psgd::P2PSGD_PATH
