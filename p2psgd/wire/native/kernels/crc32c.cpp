// Slicing by 8 (Kounavis and Berry, 2005): eight tables, one step per eight bytes.
#include "crc32c.hpp"

#include <array>

#include "bytes.hpp"
#include "paths.hpp"

namespace p2psgd::P2PSGD_PATH {
namespace {

using Table = std::array<std::uint32_t, 256>;

constexpr std::array<Table, 8> make_tables() noexcept {
    constexpr std::uint32_t polynomial = 0x82F63B78;  // 0x1EDC6F41, reflected
    std::array<Table, 8> tables{};
    for (std::uint32_t byte = 0; byte < 256; ++byte) {
        std::uint32_t crc = byte;
        for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ (polynomial & -(crc & 1));
        tables[0][byte] = crc;
    }
    for (std::size_t t = 1; t < tables.size(); ++t) {
        for (std::size_t byte = 0; byte < 256; ++byte) {
            const std::uint32_t crc = tables[t - 1][byte];
            tables[t][byte] = (crc >> 8) ^ tables[0][crc & 0xFF];
        }
    }
    return tables;
}

constexpr std::array<Table, 8> tables = make_tables();

}  // namespace

std::uint32_t crc32c(const std::uint8_t* data, std::size_t size, std::uint32_t crc) noexcept {
    crc = ~crc;
    for (; size >= 8; size -= 8, data += 8) {
        const std::uint64_t chunk = load64(data) ^ crc;
        crc = 0;
        for (unsigned byte = 0; byte < 8; ++byte) crc ^= tables[7 - byte][chunk >> (8 * byte) & 0xFF];
    }
    for (; size > 0; --size, ++data) crc = (crc >> 8) ^ tables[0][(crc ^ *data) & 0xFF];
    return ~crc;
}

}  // namespace p2psgd::P2PSGD_PATH
