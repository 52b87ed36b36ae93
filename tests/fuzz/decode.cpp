// Any bytes as a payload. Input: count (2 bytes), weights (2), path (1), then the payload.
//
// Every path decodes or refuses as the portable one does, `measure` agrees, words are sorted and below
// `weights`, and what is accepted is canonical: encoded again with the choices that it shows it has the same
// bytes. What our encoder makes of the words decodes to them.
#include "fuzz.hpp"

using namespace p2psgd;
using namespace p2psgd::fuzz;

namespace {

using Bytes = std::vector<std::uint8_t>;
using Words = std::vector<std::uint32_t>;

void check_words(const Words& words, std::uint64_t weights) {
    for (std::size_t i = 0; i < words.size(); ++i) {
        require(words[i] >> 1 < weights, "an index is below the number of weights");
        require(i == 0 || words[i - 1] >> 1 < words[i] >> 1, "indices ascend");
    }
}

void check_canonical(const Kernels& path, const Bytes& payload, const Words& words, std::uint64_t weights,
                     const Bytes& headers) {
    Bytes again(payload.size() + encode_slack);
    std::size_t bytes = 0;
    const Outcome outcome = path.encode_as(words.data(), words.size(), weights, headers.data(), again.data(),
                                           again.size(), &bytes);
    require(outcome.status == Status::ok, "what was decoded can be encoded with the same choices");
    again.resize(bytes);
    require(again == payload, "the same choices give the same bytes");
}

void check_own_encoding(const Kernels& path, const Words& words, std::uint64_t weights) {
    Bytes own(payload_bytes_max(words.size()) + encode_slack);
    std::size_t bytes = 0;
    require(
        path.encode(words.data(), words.size(), weights, own.data(), own.size(), &bytes).status == Status::ok,
        "what was decoded can be encoded");
    require(bytes <= payload_bytes_max(words.size()), "payload_bytes_max holds");
    own.resize(bytes);
    own.shrink_to_fit();
    Words back(words.size());
    require(path.decode(own.data(), bytes, words.size(), weights, back.data()).status == Status::ok &&
                back == words,
            "our encoding decodes to the same words");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    Input input(data, size);
    std::size_t count = input.count();
    const std::uint64_t weights = input.weights();
    if (count > weights) count = static_cast<std::size_t>(weights);
    const Kernels& path = input.path();
    const Bytes payload = input.rest();

    Words expected(count);
    Words words(count);
    const Outcome refusal =
        portable_path().decode(payload.data(), payload.size(), count, weights, expected.data());
    const Outcome outcome = path.decode(payload.data(), payload.size(), count, weights, words.data());
    require(same(outcome, refusal), "a path accepts and refuses what the portable one does");

    // The portable measure meets every other path's decode.
    PayloadBits bits{};
    Bytes headers((count + block_gaps - 1) / block_gaps);
    const Kernels& measuring = (size & 1) != 0 ? path : portable_path();
    const Outcome measured =
        measuring.measure(payload.data(), payload.size(), count, weights, &bits, headers.data());
    require(same(measured, refusal), "measure refuses what decode refuses");
    if (outcome.status != Status::ok) return 0;

    require(words == expected, "a path decodes what the portable one does");
    check_words(words, weights);
    require(bits.header + bits.remainder + bits.quotient + bits.sign + bits.dense == 8 * payload.size(),
            "the bits of a payload add up");
    check_canonical(measuring, payload, words, weights, headers);
    check_own_encoding(path, words, weights);
    return 0;
}
