// Payloads: the gaps between sorted indices as blocks of split-stream Golomb-Rice codes, with plain or coded
// signs, or a dense form of five weights to a byte (SPEC.md, section "Payload").
//
// A word is `index << 1 | negative`. No entry allocates, throws or keeps state; buffers belong to the caller,
// words must be aligned to 4 bytes, payloads may lie anywhere. Buffers must not overlap. Safe for any bytes:
// nothing is read or written outside the buffers.
#pragma once

#include <cstddef>
#include <cstdint>

#include "limits.hpp"
#include "status.hpp"

namespace p2psgd {

// Upper bound of the payload of `count` indices, in bytes.
//
// With plain signs and the parameter 24 a block of c gaps costs 8 bits of header, 25 bits for each of the up
// to c + 7 values, c + sum(gap >> 24) bits of quotients and 7 bits of padding. The gaps of a payload add up
// to less than 2^31, so all sum(gap >> 24) together are under 128. The encoder's choice makes k * c + sum(gap
// >> k) no larger than that, and takes coded signs or the dense form only where they are no longer; hence the
// bound holds for every choice it makes.
constexpr std::uint64_t payload_bytes_max(std::uint64_t count) noexcept {
    const std::uint64_t blocks = (count + block_gaps - 1) / block_gaps;
    return (blocks * (8 + 7 * 25 + 7) + count * 26 + 128 + 7) / 8;
}

// Length of the dense form.
constexpr std::uint64_t dense_bytes(std::uint64_t weights) noexcept {
    return 1 + (weights + dense_digits - 1) / dense_digits;
}

// Bytes that encode() may write beyond the payload's end, because it stores 8 at a time.
inline constexpr std::uint64_t encode_slack = 8;

// Writes the payload of words[0..count) to payload[0..capacity) and its length to *bytes.
// Needs capacity >= payload_bytes_max(count) + encode_slack. Words must ascend strictly by index and lie
// below `weights`. Faults: weights_out_of_range, count_out_of_range (not 1..indices_max), output_too_small,
// index_out_of_range, not_sorted (where = block).
using Encode = Outcome(const std::uint32_t* words, std::size_t count, std::uint64_t weights,
                       std::uint8_t* payload, std::size_t capacity, std::size_t* bytes) noexcept;

// The same with the choices of somebody else: headers[b] is the header of block b, or headers[0] is
// dense_header for the dense form. Takes any capacity. More faults: output_too_small when the payload and
// encode_slack do not fit, parameter_out_of_range (where = block).
using EncodeAs = Outcome(const std::uint32_t* words, std::size_t count, std::uint64_t weights,
                         const std::uint8_t* headers, std::uint8_t* payload, std::size_t capacity,
                         std::size_t* bytes) noexcept;

// Writes the `count` words of payload[0..bytes) to words[0..count); after a fault their content is undefined.
// Faults: weights_out_of_range, count_out_of_range, and those of a payload's bytes (where = block).
using Decode = Outcome(const std::uint8_t* payload, std::size_t bytes, std::size_t count,
                       std::uint64_t weights, std::uint32_t* words) noexcept;

// Where the bits of a payload go; the first five add up to 8 times its length.
struct PayloadBits {
    std::uint64_t header;     // of blocks, and the first byte of a dense payload
    std::uint64_t remainder;  // low bits of gaps, with the filling of the last group
    std::uint64_t quotient;   // with its padding
    std::uint64_t sign;       // one for each value of a plain block, or the sign sections with their padding
    std::uint64_t dense;      // the body of a dense payload
    std::uint64_t blocks;
    std::uint64_t sign_coded_blocks;
};

// Decodes as above, keeps no words, and says where the bits went. headers, unless null, receives the header
// of each block (dense_header alone for the dense form): ceil(count / 512) bytes.
using Measure = Outcome(const std::uint8_t* payload, std::size_t bytes, std::size_t count,
                        std::uint64_t weights, PayloadBits* bits, std::uint8_t* headers) noexcept;

}  // namespace p2psgd
