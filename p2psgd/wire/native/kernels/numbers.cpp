// Adds and checks block by block: each block of sums is still in the nearest cache when it is checked, and
// fetching memory is what costs most.
#include "numbers.hpp"

#include <algorithm>
#include <cstring>

#include "paths.hpp"

namespace p2psgd::P2PSGD_PATH {
namespace {

constexpr std::size_t block_numbers = 2048;  // 8 KiB of each of the three: half of a first-level cache

float load_float(const std::uint8_t* from) noexcept {
    float value;
    std::memcpy(&value, from, sizeof value);
    return value;
}

}  // namespace

std::uint32_t add_numbers(const std::uint8_t* incoming, const float* own, float* sums,
                          std::size_t count) noexcept {
    std::uint32_t check = 0;
    while (count > 0) {
        const std::size_t numbers = std::min(count, block_numbers);
        for (std::size_t i = 0; i < numbers; ++i)
            sums[i] = load_float(incoming + i * sizeof(float)) + own[i];
        check = crc32c(reinterpret_cast<const std::uint8_t*>(sums), numbers * sizeof(float), check);
        incoming += numbers * sizeof(float);
        own += numbers;
        sums += numbers;
        count -= numbers;
    }
    return check;
}

}  // namespace p2psgd::P2PSGD_PATH
