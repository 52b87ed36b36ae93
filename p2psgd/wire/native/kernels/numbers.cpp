// Block by block: each is still in the nearest cache when the next thing is done to it.
#include "numbers.hpp"

#include <algorithm>
#include <bit>
#include <cstring>

#include "paths.hpp"

namespace p2psgd::P2PSGD_PATH {
namespace {

constexpr std::size_t block_numbers = 2048;  // 8 KiB of each array: three are half of a first-level cache

float load_float(const std::uint8_t* from) noexcept {
    float value;
    std::memcpy(&value, from, sizeof value);
    return value;
}

// Of a sign, exponent and fraction: an exponent of ones is infinity or NaN.
bool all_finite(const float* numbers, std::size_t count) noexcept {
    constexpr std::uint32_t exponent = 0x7F800000;
    std::uint32_t not_finite = 0;
    for (std::size_t i = 0; i < count; ++i)
        not_finite |= (std::bit_cast<std::uint32_t>(numbers[i]) & exponent) == exponent;
    return not_finite == 0;
}

std::uint32_t check_of(const float* numbers, std::size_t count, std::uint32_t before) noexcept {
    return crc32c(reinterpret_cast<const std::uint8_t*>(numbers), count * sizeof(float), before);
}

}  // namespace

NumberChecks add_numbers(const std::uint8_t* incoming, const float* own, float* sums,
                         std::size_t count) noexcept {
    NumberChecks checks{0, 0, true};
    while (count > 0) {
        const std::size_t numbers = std::min(count, block_numbers);
        checks.finite &= all_finite(own, numbers);
        checks.incoming = crc32c(incoming, numbers * sizeof(float), checks.incoming);
        for (std::size_t i = 0; i < numbers; ++i)
            sums[i] = load_float(incoming + i * sizeof(float)) + own[i];
        checks.sums = check_of(sums, numbers, checks.sums);
        incoming += numbers * sizeof(float);
        own += numbers;
        sums += numbers;
        count -= numbers;
    }
    return checks;
}

NumberChecks check_numbers(const float* own, std::size_t count) noexcept {
    NumberChecks checks{0, 0, true};
    while (count > 0) {
        const std::size_t numbers = std::min(count, block_numbers);
        checks.finite &= all_finite(own, numbers);
        checks.sums = check_of(own, numbers, checks.sums);
        own += numbers;
        count -= numbers;
    }
    return checks;
}

std::uint32_t copy_numbers(const std::uint8_t* incoming, float* numbers, std::size_t count) noexcept {
    std::uint32_t check = 0;
    while (count > 0) {
        const std::size_t block = std::min(count, block_numbers);
        check = crc32c(incoming, block * sizeof(float), check);
        std::memcpy(numbers, incoming, block * sizeof(float));
        incoming += block * sizeof(float);
        numbers += block;
        count -= block;
    }
    return check;
}

WeightDigests move_weights(const std::int32_t* old, const float* sums, float factor, std::int32_t* next,
                           std::size_t count, std::uint64_t start, std::uint64_t key) noexcept {
    WeightDigests digests{0, 0};
    while (count > 0) {
        const std::size_t block = std::min(count, block_numbers);
        for (std::size_t i = 0; i < block; ++i)
            next[i] = std::bit_cast<std::int32_t>(std::bit_cast<float>(old[i]) + sums[i] * factor);
        digests.old += digest_coordinates(old, block, start, key);
        digests.next += digest_coordinates(next, block, start, key);
        old += block;
        sums += block;
        next += block;
        start += block;
        count -= block;
    }
    return digests;
}

}  // namespace p2psgd::P2PSGD_PATH
