// The residual pass. Nearly all weights stay under the threshold, so the sweep adds a strip of weights
// without branches, and looks at the single weights only of a strip in which one has crossed. NaN and
// infinity cross every threshold when magnitudes are compared as integers: they cost nothing to find.
#include "residual.hpp"

#include <bit>
#include <cmath>
#include <cstring>

#include "limits.hpp"
#include "paths.hpp"

#if defined(__AVX2__)
#include <immintrin.h>
#endif

namespace p2psgd::P2PSGD_PATH {
namespace {

constexpr std::size_t strip = 64;  // at 1/850 sent, one strip in 14 is looked at
constexpr std::int32_t infinity_bits = 0x7F800000;

std::int32_t magnitude(float value) noexcept { return std::bit_cast<std::int32_t>(value) & 0x7FFFFFFF; }

struct Float {
    float value;
};

// IEEE 754 binary16.
struct Half {
    std::uint16_t bits;
};

struct Bfloat {
    std::uint16_t bits;
};

struct Negated {
    float value;
};

float widen(Float element) noexcept { return element.value; }

float widen(Negated element) noexcept { return -element.value; }

float widen(Bfloat element) noexcept { return std::bit_cast<float>(std::uint32_t{element.bits} << 16); }

// Masks from sign bits instead of choices: compilers vectorize it.
float widen(Half element) noexcept {
    const std::int32_t bits = element.bits;
    const std::int32_t size = bits & 0x7FFF;
    const std::int32_t denormal = (size - 0x0400) >> 31;
    const std::int32_t unending = (0x7BFF - size) >> 31;  // NaN or infinity: the exponent stays all ones
    const std::int32_t normal = (size << 13) + (112 << 23) + (unending & 112 << 23);
    const std::int32_t small = std::bit_cast<std::int32_t>(static_cast<float>(size) * 0x1p-24f);
    const std::int32_t widened = (denormal & small) | (~denormal & normal);
    return std::bit_cast<float>(widened | (bits & 0x8000) << 16);
}

// What one sweep does with the few weights that cross.
class Emission {
  public:
    Emission(float threshold, std::size_t first, std::size_t none_missed, std::uint32_t* words,
             std::size_t capacity) noexcept
        : swept{0, none_missed},
          limit(magnitude(threshold)),
          none_missed_(none_missed),
          threshold_(threshold),
          first_(first),
          words_(words),
          capacity_(capacity) {}

    // Emits a sum beyond the threshold and reduces it; false for one that is not finite.
    bool settle(float& sum, std::size_t i) noexcept {
        if (magnitude(sum) <= limit) return true;
        if (magnitude(sum) >= infinity_bits) return false;
        if (swept.count == capacity_) {
            if (swept.missed == none_missed_) swept.missed = i;
            return true;
        }
        const bool negative = std::bit_cast<std::int32_t>(sum) < 0;
        words_[swept.count++] = static_cast<std::uint32_t>((first_ + i) << 1) | std::uint32_t{negative};
        sum = negative ? sum + threshold_ : sum - threshold_;
        return true;
    }

    Swept swept;
    const std::int32_t limit;

  private:
    const std::size_t none_missed_;
    const float threshold_;
    const std::size_t first_;
    std::uint32_t* const words_;
    const std::size_t capacity_;
};

// Each sweep below returns where it stopped: `end`, or the i of a sum that is not finite.

template <typename Element>
std::size_t sweep_singly(const float* source, const Element* delta, float* target, std::size_t begin,
                         std::size_t end, Emission& emission) noexcept {
    for (std::size_t i = begin; i < end; ++i) {
        float sum = source[i] + widen(delta[i]);
        if (!emission.settle(sum, i)) return i;
        target[i] = sum;
    }
    return end;
}

#if defined(__AVX2__)

// From this size on target is written past the caches: a plain store would first read what it is about to
// overwrite, a fourth stream beside the three that are needed.
constexpr std::size_t streaming_weights = std::size_t{3} << 19;
constexpr std::size_t page_weights = 4096 / sizeof(float);
constexpr std::size_t vectors = strip / 8;

__m256 load(const Float* delta) noexcept { return _mm256_loadu_ps(&delta->value); }
__m256 load(const Half* delta) noexcept {
    return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(delta)));
}
__m256 load(const Bfloat* delta) noexcept {
    const __m128i narrow = _mm_loadu_si128(reinterpret_cast<const __m128i*>(delta));
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(narrow), 16));
}
__m256 load(const Negated* delta) noexcept {
    return _mm256_xor_ps(_mm256_loadu_ps(&delta->value), _mm256_set1_ps(-0.0f));
}

// Hardware does not prefetch across pages: have the page after next found before the sweep gets there.
template <typename Element>
void touch_pages_ahead(const float* source, const Element* delta, const float* target) noexcept {
    _mm_prefetch(reinterpret_cast<const char*>(source + 2 * page_weights), _MM_HINT_T0);
    _mm_prefetch(reinterpret_cast<const char*>(delta + 2 * page_weights), _MM_HINT_T0);
    _mm_prefetch(reinterpret_cast<const char*>(target + 2 * page_weights), _MM_HINT_T0);
}

// Strips from begin on, as many as are whole; target + begin is aligned to 32 bytes if `streaming`.
template <typename Element, bool streaming>
std::size_t sweep_strips(const float* source, const Element* delta, float* target, std::size_t begin,
                         std::size_t end, Emission& emission) noexcept {
    const __m256i limit = _mm256_set1_epi32(emission.limit);
    const __m256i all_but_sign = _mm256_set1_epi32(0x7FFFFFFF);
    std::size_t i = begin;
    for (; i + strip <= end; i += strip) {
        if (streaming && i % page_weights < strip) touch_pages_ahead(source + i, delta + i, target + i);
        __m256 sums[vectors];
        __m256i largest = _mm256_setzero_si256();
        for (std::size_t v = 0; v < vectors; ++v) {
            sums[v] = _mm256_add_ps(_mm256_loadu_ps(source + i + 8 * v), load(delta + i + 8 * v));
            largest = _mm256_max_epi32(largest, _mm256_and_si256(_mm256_castps_si256(sums[v]), all_but_sign));
        }
        const __m256i crossed = _mm256_cmpgt_epi32(largest, limit);
        if (!_mm256_testz_si256(crossed, crossed)) [[unlikely]] {
            alignas(32) float single[strip];
            std::uint64_t beyond = 0;  // a bit for each weight that has crossed
            for (std::size_t v = 0; v < vectors; ++v) {
                _mm256_store_ps(single + 8 * v, sums[v]);
                const __m256i size = _mm256_and_si256(_mm256_castps_si256(sums[v]), all_but_sign);
                const int bits = _mm256_movemask_ps(_mm256_castsi256_ps(_mm256_cmpgt_epi32(size, limit)));
                beyond |= static_cast<std::uint64_t>(bits) << 8 * v;
            }
            for (; beyond != 0; beyond &= beyond - 1) {
                const std::size_t place = static_cast<std::size_t>(std::countr_zero(beyond));
                if (!emission.settle(single[place], i + place)) return i + place;
            }
            for (std::size_t v = 0; v < vectors; ++v) sums[v] = _mm256_load_ps(single + 8 * v);
        }
        for (std::size_t v = 0; v < vectors; ++v) {
            if constexpr (streaming) {
                _mm256_stream_ps(target + i + 8 * v, sums[v]);
            } else {
                _mm256_storeu_ps(target + i + 8 * v, sums[v]);
            }
        }
    }
    return sweep_singly(source, delta, target, i, end, emission);
}

template <typename Element>
std::size_t sweep(const float* source, const Element* delta, float* target, std::size_t weights,
                  Emission& emission) noexcept {
    if (weights < streaming_weights)
        return sweep_strips<Element, false>(source, delta, target, 0, weights, emission);
    const std::size_t head = (0 - reinterpret_cast<std::uintptr_t>(target) / sizeof(float)) % 8;
    const std::size_t stop = sweep_singly(source, delta, target, 0, head, emission);
    if (stop != head) return stop;
    const std::size_t end = sweep_strips<Element, true>(source, delta, target, head, weights, emission);
    _mm_sfence();  // streaming stores pass others: whoever is told that target is complete must find it so
    return end;
}

#else

template <typename Element>
std::size_t sweep(const float* source, const Element* delta, float* target, std::size_t weights,
                  Emission& emission) noexcept {
    std::size_t i = 0;
    for (; i + strip <= weights; i += strip) {
        float sums[strip];
        std::int32_t crossed = 0;  // negative once a magnitude is the larger
        for (std::size_t j = 0; j < strip; ++j) {
            sums[j] = source[i + j] + widen(delta[i + j]);
            crossed |= emission.limit - magnitude(sums[j]);
        }
        if (crossed < 0) {
            for (std::size_t j = 0; j < strip; ++j) {
                if (!emission.settle(sums[j], i + j)) return i + j;
            }
        }
        std::memcpy(target + i, sums, sizeof sums);
    }
    return sweep_singly(source, delta, target, i, weights, emission);
}

#endif

}  // namespace

Outcome residual_pass(const float* source, Delta delta, float* target, std::size_t weights, float threshold,
                      std::size_t first, std::uint32_t* words, std::size_t capacity, Swept* swept) noexcept {
    if (weights < 1 || weights > weights_max) return {Status::weights_out_of_range, 0};
    if (first > weights_max - weights) return {Status::start_out_of_range, first};
    if (!(threshold > 0) || !std::isfinite(threshold)) return {Status::amount_not_positive, 0};
    Emission emission(threshold, first, weights, words, capacity);
    std::size_t end = 0;
    switch (delta.precision) {
        case Precision::float32:
            end = sweep(source, static_cast<const Float*>(delta.values), target, weights, emission);
            break;
        case Precision::float16:
            end = sweep(source, static_cast<const Half*>(delta.values), target, weights, emission);
            break;
        case Precision::bfloat16:
            end = sweep(source, static_cast<const Bfloat*>(delta.values), target, weights, emission);
            break;
        case Precision::negated:
            end = sweep(source, static_cast<const Negated*>(delta.values), target, weights, emission);
            break;
    }
    *swept = emission.swept;
    if (end != weights) return {Status::not_finite, first + end};
    return {Status::ok, 0};
}

}  // namespace p2psgd::P2PSGD_PATH
