// Applying updates. All words are checked against the number of weights before the first write.
//
// Scattered over a net of millions of weights nearly every index is a cache miss, and a TLB miss: what counts
// is how early the cache line is asked for. No path has code of its own here: AVX2 cannot scatter.
#include "apply.hpp"

#include <bit>
#include <cmath>

#include "limits.hpp"
#include "paths.hpp"

namespace p2psgd::P2PSGD_PATH {
namespace {

constexpr std::size_t ahead = 32;  // words between a prefetch and its use; 8 is too few, 128 no better

// The position of the first word whose index is not below `weights`, or count.
std::size_t first_outside(const std::uint32_t* words, std::size_t count, std::size_t weights) noexcept {
    if (weights >= weights_max) return count;
    // A word is below the limit exactly when its index is below weights.
    const std::uint32_t limit = static_cast<std::uint32_t>(weights << 1);
    std::uint32_t outside = 0;
    for (std::size_t i = 0; i < count; ++i) outside |= static_cast<std::uint32_t>(words[i] >= limit);
    if (outside == 0) return count;
    std::size_t first = 0;
    while (words[first] < limit) ++first;
    return first;
}

bool is_step(std::uint32_t step) noexcept { return step >= 1 && step <= step_max; }
bool is_amount(float amount) noexcept { return amount > 0 && std::isfinite(amount); }

// Adds the word's signed step; returns the new magnitude.
inline std::uint32_t add(std::int32_t& coordinate, std::uint32_t word, std::uint32_t step) noexcept {
    const std::uint32_t negative = -(word & 1);  // all ones for a minus: (step ^ ones) - ones = -step
    const std::uint32_t sum = static_cast<std::uint32_t>(coordinate) + ((step ^ negative) - negative);
    coordinate = static_cast<std::int32_t>(sum);
    return (sum >> 31) != 0 ? 0u - sum : sum;
}

inline void add(float& value, std::uint32_t word, float amount) noexcept {
    value += std::bit_cast<float>(std::bit_cast<std::uint32_t>(amount) | word << 31);  // the word's sign bit
}

// Together: measured on 14.6 M weights with 1 to 256 updates of 17,300 words, ranges of 2^15 to 2^17 weights
// are equally fast and smaller or larger ones slower; half a MB is an L2 cache.
constexpr std::size_t range_weights = std::size_t{1} << 15;
constexpr std::size_t segment_words_min = 16;  // fewer of an update in a range do not pay for its visit
constexpr std::size_t line_weights = 16;       // of 4 bytes in a cache line

// Ranges as large as segments of segment_words_min on average ask for.
std::size_t choose_range(std::size_t weights, std::size_t words, std::size_t updates) noexcept {
    std::size_t range = range_weights;
    while (range < weights && words / updates * range < segment_words_min * weights) range *= 2;
    return range;
}

// Applies every word by apply_word(value, word, update) and returns apply_word, which may have counted.
// `lines` says what is prefetched with each word: that many lines of the next range, one after the other, so
// that at its density all of them come; or, for 0, the line of the word that is `ahead`.
template <unsigned lines, typename Value, typename Update, typename ApplyWord>
ApplyWord walk(Value* values, std::size_t weights, const Update* updates, std::size_t updates_count,
               std::size_t range, ApplyWord apply_word) noexcept {
    const std::uint32_t* cursors[together_max];
    for (std::size_t u = 0; u < updates_count; ++u) cursors[u] = updates[u].words;
    for (std::size_t begin = 0; begin < weights; begin += range) {
        const std::size_t end = weights - begin < range ? weights : begin + range;
        const std::size_t next_end = weights - end < range ? weights : end + range;
        const std::uint32_t last = static_cast<std::uint32_t>(2 * end - 1);  // the greatest word of the range
        std::size_t next = end;  // the weight of the next range whose line is not asked for yet
        for (std::size_t u = 0; u < updates_count; ++u) {
            const Update update = updates[u];
            const std::uint32_t* const words_end = update.words + update.count;
            const std::uint32_t* at = cursors[u];
            for (; at != words_end && *at <= last; ++at) {
                if constexpr (lines == 0) {
                    if (static_cast<std::size_t>(words_end - at) > ahead)
                        __builtin_prefetch(values + (at[ahead] >> 1), 1);
                } else if (next + lines * line_weights <= next_end) {
                    for (unsigned line = 0; line < lines; ++line)
                        __builtin_prefetch(values + next + line * line_weights, 1, 2);
                    next += lines * line_weights;
                }
                apply_word(values[*at >> 1], *at, update);
            }
            cursors[u] = at;
        }
    }
    return apply_word;
}

template <typename Value, typename Update, typename ApplyWord>
ApplyWord apply_by_range(Value* values, std::size_t weights, const Update* updates, std::size_t updates_count,
                         ApplyWord apply_word) noexcept {
    if (weights > weights_max) weights = weights_max;  // no word names one beyond
    std::size_t words = 0;
    for (std::size_t u = 0; u < updates_count; ++u) words += updates[u].count;
    if (words == 0) return apply_word;
    const std::size_t range = choose_range(weights, words, updates_count);
    const std::size_t weights_per_word = weights / words;
    if (range > range_weights || weights_per_word >= 2 * line_weights)
        return walk<0>(values, weights, updates, updates_count, range, apply_word);
    if (weights_per_word >= line_weights)
        return walk<2>(values, weights, updates, updates_count, range, apply_word);
    return walk<1>(values, weights, updates, updates_count, range, apply_word);
}

struct AddSteps {
    std::uint64_t top = 0;  // magnitude << 32 | inverted word: the greatest is the first of the largest

    void operator()(std::int32_t& coordinate, std::uint32_t word, const CoordinateUpdate& update) noexcept {
        const std::uint64_t magnitude = add(coordinate, word, update.step);
        const std::uint64_t ranked = magnitude << 32 | static_cast<std::uint32_t>(~word);
        if (ranked > top) top = ranked;
    }
};

struct AddAmounts {
    void operator()(float& value, std::uint32_t word, const WeightUpdate& update) const noexcept {
        add(value, word, update.amount);
    }
};

}  // namespace

Outcome apply_coordinates(std::int32_t* coordinates, std::size_t weights, const std::uint32_t* words,
                          std::size_t count, std::uint32_t step, Largest* largest) noexcept {
    if (!is_step(step)) return {Status::step_out_of_range, step};
    const std::size_t outside = first_outside(words, count, weights);
    if (outside != count) return {Status::index_out_of_range, outside};
    Largest top = {0, 0};
    for (std::size_t i = 0; i < count; ++i) {
        if (i + ahead < count) __builtin_prefetch(coordinates + (words[i + ahead] >> 1), 1);
        const std::uint32_t magnitude = add(coordinates[words[i] >> 1], words[i], step);
        if (magnitude > top.magnitude) top = {magnitude, words[i] >> 1};
    }
    *largest = top;
    return {Status::ok, 0};
}

Outcome apply_weights(float* values, std::size_t weights, const std::uint32_t* words, std::size_t count,
                      float amount) noexcept {
    if (!is_amount(amount)) return {Status::amount_not_positive, 0};
    const std::size_t outside = first_outside(words, count, weights);
    if (outside != count) return {Status::index_out_of_range, outside};
    for (std::size_t i = 0; i < count; ++i) {
        if (i + ahead < count) __builtin_prefetch(values + (words[i + ahead] >> 1), 1);
        add(values[words[i] >> 1], words[i], amount);
    }
    return {Status::ok, 0};
}

Outcome apply_coordinates_together(std::int32_t* coordinates, std::size_t weights,
                                   const CoordinateUpdate* updates, std::size_t updates_count,
                                   Largest* largest) noexcept {
    if (updates_count > together_max) return {Status::count_out_of_range, updates_count};
    for (std::size_t u = 0; u < updates_count; ++u) {
        if (!is_step(updates[u].step)) return {Status::step_out_of_range, u};
        if (first_outside(updates[u].words, updates[u].count, weights) != updates[u].count)
            return {Status::index_out_of_range, u};
    }
    const std::uint64_t top = apply_by_range(coordinates, weights, updates, updates_count, AddSteps{}).top;
    const std::uint32_t magnitude = static_cast<std::uint32_t>(top >> 32);
    *largest = {magnitude, magnitude == 0 ? 0 : static_cast<std::uint32_t>(~top) >> 1};
    return {Status::ok, 0};
}

Outcome apply_weights_together(float* values, std::size_t weights, const WeightUpdate* updates,
                               std::size_t updates_count) noexcept {
    if (updates_count > together_max) return {Status::count_out_of_range, updates_count};
    for (std::size_t u = 0; u < updates_count; ++u) {
        if (!is_amount(updates[u].amount)) return {Status::amount_not_positive, u};
        if (first_outside(updates[u].words, updates[u].count, weights) != updates[u].count)
            return {Status::index_out_of_range, u};
    }
    apply_by_range(values, weights, updates, updates_count, AddAmounts{});
    return {Status::ok, 0};
}

}  // namespace p2psgd::P2PSGD_PATH
