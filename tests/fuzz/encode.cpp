// Any words to the encoder. Input: path (1 byte), then a byte for each word: the gap's magnitude (5 bits, the
// last two values for disorder) and a detail of it (2), the sign (1).
//
// Sorted words are encoded to the same bytes on every path and decode to themselves; others are refused.
#include "fuzz.hpp"

using namespace p2psgd;
using namespace p2psgd::fuzz;

namespace {

struct Encoded {
    Outcome outcome;
    std::vector<std::uint8_t> payload;
};

Encoded encoded(const Kernels& path, const std::vector<std::uint32_t>& words, std::uint64_t weights) {
    Encoded result{{Status::ok, 0},
                   std::vector<std::uint8_t>(payload_bytes_max(words.size()) + encode_slack)};
    std::size_t bytes = 0;
    result.outcome = path.encode(words.data(), words.size(), weights, result.payload.data(),
                                 result.payload.size(), &bytes);
    result.payload.resize(bytes);
    result.payload.shrink_to_fit();
    return result;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    Input input(data, size);
    const Kernels& path = input.path();
    std::vector<std::uint32_t> words;
    bool sorted = true;
    std::uint64_t index = 0;
    while (!input.over()) {
        const std::uint32_t byte = input.byte();
        const unsigned magnitude = byte >> 3;
        if (magnitude >= 30) {  // the index before once more, or the first one
            sorted = sorted && words.empty();
            index = magnitude == 30 && index > 0 ? index - 1 : 0;
        } else if (magnitude > 0) {
            index += (std::uint64_t{1} << (magnitude - 1)) + (byte >> 1 & 3);
        }
        if (index >= weights_max) break;
        words.push_back(static_cast<std::uint32_t>(index << 1 | (byte & 1)));
        ++index;
    }
    if (words.empty()) return 0;
    words.shrink_to_fit();
    std::uint64_t weights = 0;
    for (const std::uint32_t word : words)
        weights = word >> 1 < weights ? weights : (word >> 1) + std::uint64_t{1};
    if (words.size() > indices_max(weights)) return 0;

    const Encoded expected = encoded(portable_path(), words, weights);
    const Encoded own = encoded(path, words, weights);
    require((expected.outcome.status == Status::ok) == sorted, "exactly sorted words are taken");
    require(same(own.outcome, expected.outcome), "a path takes and refuses what the portable one does");
    if (!sorted) return 0;
    require(own.payload == expected.payload, "a path's bytes are the portable one's");
    require(own.payload.size() <= payload_bytes_max(words.size()), "payload_bytes_max holds");
    std::vector<std::uint32_t> back(words.size());
    require(path.decode(own.payload.data(), own.payload.size(), words.size(), weights, back.data()).status ==
                    Status::ok &&
                back == words,
            "a payload decodes to its words");
    if (weights > words.back() >> 1 && weights > 1) {
        const Encoded outside = encoded(path, words, weights - 1);
        require(outside.outcome.status != Status::ok, "an index outside is refused");
    }
    return 0;
}
