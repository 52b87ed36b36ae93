// Applying an update. All words are checked against the number of weights before the first write.
#include "apply.hpp"

#include <algorithm>
#include <bit>
#include <cmath>

#include "limits.hpp"
#include "paths.hpp"

namespace p2psgd::P2PSGD_PATH {
namespace {

constexpr std::size_t ahead = 32;  // words between a prefetch and its use: nearly every index is a cache miss

// The position of the first word whose index is not below `weights`, or count.
std::size_t first_outside(const std::uint32_t* words, std::size_t count, std::size_t weights) noexcept {
    if (weights >= weights_max) return count;
    // A word is below the limit exactly when its index is below weights.
    const std::uint32_t limit = static_cast<std::uint32_t>(weights << 1);
    std::uint32_t outside = 0;
    for (std::size_t i = 0; i < count; ++i) outside |= static_cast<std::uint32_t>(words[i] >= limit);
    if (outside == 0) return count;
    return static_cast<std::size_t>(
        std::find_if(words, words + count, [=](std::uint32_t word) { return word >= limit; }) - words);
}

}  // namespace

Outcome apply_coordinates(std::int32_t* coordinates, std::size_t weights, const std::uint32_t* words,
                          std::size_t count, std::uint32_t step, Largest* largest) noexcept {
    if (step < 1 || step > step_max) return {Status::step_out_of_range, step};
    const std::size_t outside = first_outside(words, count, weights);
    if (outside != count) return {Status::index_out_of_range, outside};
    Largest top = {0, 0};
    for (std::size_t i = 0; i < count; ++i) {
        if (i + ahead < count) __builtin_prefetch(coordinates + (words[i + ahead] >> 1), 1);
        const std::uint32_t word = words[i];
        const std::uint32_t negative = -(word & 1);  // all ones for a minus: (step ^ ones) - ones = -step
        std::int32_t& coordinate = coordinates[word >> 1];
        const std::uint32_t sum = static_cast<std::uint32_t>(coordinate) + ((step ^ negative) - negative);
        coordinate = static_cast<std::int32_t>(sum);
        const std::uint32_t magnitude = (sum >> 31) != 0 ? 0u - sum : sum;
        if (magnitude > top.magnitude) top = {magnitude, word >> 1};
    }
    *largest = top;
    return {Status::ok, 0};
}

Outcome apply_weights(float* values, std::size_t weights, const std::uint32_t* words, std::size_t count,
                      float amount) noexcept {
    if (!(amount > 0) || !std::isfinite(amount)) return {Status::amount_not_positive, 0};
    const std::size_t outside = first_outside(words, count, weights);
    if (outside != count) return {Status::index_out_of_range, outside};
    const std::uint32_t bits = std::bit_cast<std::uint32_t>(amount);  // the word's sign becomes its sign bit
    for (std::size_t i = 0; i < count; ++i) {
        if (i + ahead < count) __builtin_prefetch(values + (words[i + ahead] >> 1), 1);
        values[words[i] >> 1] += std::bit_cast<float>(bits | words[i] << 31);
    }
    return {Status::ok, 0};
}

}  // namespace p2psgd::P2PSGD_PATH
