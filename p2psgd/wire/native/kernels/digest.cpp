#include "digest.hpp"

#include "paths.hpp"

namespace p2psgd::P2PSGD_PATH {

std::uint64_t digest_words(const std::uint32_t* words, std::size_t count, std::uint32_t step,
                           std::uint64_t key) noexcept {
    std::uint64_t sum = 0;
    for (std::size_t i = 0; i < count; ++i) {
        const std::uint64_t negative = -static_cast<std::uint64_t>(words[i] & 1);  // all ones for a minus
        sum += (index_hash(words[i] >> 1, key) ^ negative) - negative;
    }
    return sum * step;
}

std::uint64_t digest_coordinates(const std::int32_t* coordinates, std::size_t count, std::uint64_t start,
                                 std::uint64_t key) noexcept {
    std::uint64_t sum = 0;
    for (std::size_t i = 0; i < count; ++i) {
        sum += static_cast<std::uint64_t>(std::int64_t{coordinates[i]}) * index_hash(start + i, key);
    }
    return sum;
}

}  // namespace p2psgd::P2PSGD_PATH
