// CRC-32C (Castagnoli polynomial, RFC 3720 appendix B.4): the check of an update's header and payload.
#pragma once

#include <cstddef>
#include <cstdint>

namespace p2psgd {

// The CRC of data[0..size), continuing from the CRC of what came before it (0 at the beginning).
using Crc32c = std::uint32_t(const std::uint8_t* data, std::size_t size, std::uint32_t crc) noexcept;

}  // namespace p2psgd
