// The residual pass. Nearly all weights stay under the threshold, so the sweep adds a strip of weights
// without branches, and looks at the single weights only of a strip in which one has crossed.
#include "residual.hpp"

#include <algorithm>
#include <bit>
#include <cmath>

#include "limits.hpp"
#include "paths.hpp"

namespace p2psgd::P2PSGD_PATH {
namespace {

constexpr std::size_t strip = 32;            // at 1/850 sent, one strip in 27 is looked at
constexpr std::size_t scan_block = 1 << 18;  // 1 MiB: shorter jumps backwards defeat the prefetcher

bool finite(const float* delta, std::size_t count) noexcept {
    std::uint32_t overflows = 0;  // adding one to an exponent of all ones carries into the sign bit
    for (std::size_t i = 0; i < count; ++i) {
        overflows |= (std::bit_cast<std::uint32_t>(delta[i]) & 0x7FFFFFFFu) + 0x00800000u;
    }
    return (overflows >> 31) == 0;
}

// Goes from the last block to the first: the sweep then finds what it reads first still in the cache.
bool all_finite(const float* delta, std::size_t count) noexcept {
    bool good = true;
    for (std::size_t end = count; end > 0 && good;) {
        const std::size_t begin = end > scan_block ? end - scan_block : 0;
        good = finite(delta + begin, end - begin);
        end = begin;
    }
    return good;
}

class Sweep {
  public:
    Sweep(float* residual, const float* delta, float threshold, std::uint32_t* words,
          std::size_t capacity) noexcept
        : residual_(residual), delta_(delta), threshold_(threshold), words_(words), capacity_(capacity) {}

    void run(std::size_t begin, std::size_t end) noexcept {
        std::size_t i = begin;
        for (; i + strip <= end; i += strip) {
            if (!accumulate_strip(residual_ + i, delta_ + i)) continue;
            for (std::size_t j = i; j < i + strip; ++j) emit(j);
        }
        for (; i < end; ++i) {
            residual_[i] += delta_[i];
            emit(i);
        }
    }

    std::size_t count() const noexcept { return count_; }
    std::size_t next() const noexcept { return missed_ ? next_ : 0; }

  private:
    // True when a residual of the strip may have crossed the threshold. Compares magnitudes as integers,
    // which orders floats too: the difference is negative when the sum is the larger.
    bool accumulate_strip(float* residual, const float* delta) const noexcept {
        const std::int32_t threshold = std::bit_cast<std::int32_t>(threshold_);
        std::int32_t crossed = 0;
        for (std::size_t j = 0; j < strip; ++j) {
            const float sum = residual[j] + delta[j];
            residual[j] = sum;
            crossed |= threshold - (std::bit_cast<std::int32_t>(sum) & 0x7FFFFFFF);
        }
        return crossed < 0;
    }

    void emit(std::size_t index) noexcept {
        const float sum = residual_[index];
        const bool negative = sum < -threshold_;
        if (!negative && !(sum > threshold_)) return;
        if (count_ == capacity_) {
            if (!missed_) next_ = index;
            missed_ = true;
            return;
        }
        residual_[index] = negative ? sum + threshold_ : sum - threshold_;
        words_[count_++] = static_cast<std::uint32_t>(index) << 1 | static_cast<std::uint32_t>(negative);
    }

    float* const residual_;
    const float* const delta_;
    const float threshold_;
    std::uint32_t* const words_;
    const std::size_t capacity_;
    std::size_t count_ = 0;
    std::size_t next_ = 0;
    bool missed_ = false;
};

}  // namespace

Outcome residual_pass(float* residual, const float* delta, std::size_t weights, float threshold,
                      std::size_t start, std::uint32_t* words, std::size_t capacity, Swept* swept) noexcept {
    if (weights < 1 || weights > weights_max) return {Status::weights_out_of_range, 0};
    if (start >= weights) return {Status::start_out_of_range, start};
    if (!(threshold > 0) || !std::isfinite(threshold)) return {Status::amount_not_positive, 0};
    if (!all_finite(delta, weights)) {
        const float* bad =
            std::find_if_not(delta, delta + weights, [](float value) { return std::isfinite(value); });
        return {Status::not_finite, static_cast<std::uint64_t>(bad - delta)};
    }
    Sweep sweep(residual, delta, threshold, words, capacity);
    sweep.run(start, weights);
    const std::size_t upper = sweep.count();
    sweep.run(0, start);
    std::rotate(words, words + upper, words + sweep.count());  // the indices below start belong in front
    *swept = {sweep.count(), sweep.next()};
    return {Status::ok, 0};
}

}  // namespace p2psgd::P2PSGD_PATH
