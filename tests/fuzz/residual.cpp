// The residual pass on any floats. Input: path (1 byte), precision (1), weights (2), room (2), threshold (4),
// then source (4 each) and delta (2 or 4 each), zeros once the input is over.
//
// A path sends, keeps and refuses what the portable one does, to the bit; for float32 that is what a plain
// loop does. Source and delta stay as they are.
#include <bit>
#include <cmath>
#include <cstring>

#include "fuzz.hpp"

using namespace p2psgd;
using namespace p2psgd::fuzz;

namespace {

struct Result {
    Outcome outcome;
    Swept swept;
    std::vector<float> target;
    std::vector<std::uint32_t> words;
};

struct Arguments {
    std::vector<float> source;
    std::vector<float> wide;            // the delta in float32, or
    std::vector<std::uint16_t> narrow;  // in 16 bits
    Precision precision;
    float threshold;
    std::size_t room;

    bool is_wide() const { return precision == Precision::float32 || precision == Precision::negated; }

    Delta delta() const {
        if (is_wide()) return {wide.data(), precision};
        return {narrow.data(), precision};
    }
};

Result swept_by(const Kernels& path, const Arguments& arguments) {
    Result result{{Status::ok, 0}, {0, 0}, {}, {}};
    result.target.resize(arguments.source.size());
    result.words.resize(arguments.room);
    result.outcome = path.residual_pass(arguments.source.data(), arguments.delta(), result.target.data(),
                                        arguments.source.size(), arguments.threshold, 0, result.words.data(),
                                        result.words.size(), &result.swept);
    if (result.outcome.status == Status::ok) {
        require(result.swept.count <= arguments.room, "words find room");
        result.words.resize(result.swept.count);
    }
    return result;
}

bool same_bits(const std::vector<float>& one, const std::vector<float>& other) {
    return one.empty() || std::memcmp(one.data(), other.data(), one.size() * sizeof(float)) == 0;
}

void check_against_plain_loop(const Result& result, const Arguments& arguments) {
    std::vector<float> target(arguments.source.size());
    std::vector<std::uint32_t> words;
    std::size_t missed = target.size();
    for (std::size_t i = 0; i < target.size(); ++i) {
        const bool negated = arguments.precision == Precision::negated;
        target[i] = arguments.source[i] + (negated ? -arguments.wide[i] : arguments.wide[i]);
        require(std::isfinite(target[i]), "a sum that is not finite is refused");
        if (!(std::fabs(target[i]) > arguments.threshold)) continue;
        if (words.size() == arguments.room) {
            if (missed == target.size()) missed = i;
            continue;
        }
        const bool negative = target[i] < 0;
        words.push_back(static_cast<std::uint32_t>(i << 1) | std::uint32_t{negative});
        target[i] = negative ? target[i] + arguments.threshold : target[i] - arguments.threshold;
    }
    require(result.words == words && result.swept.missed == missed, "what is sent and missed");
    require(same_bits(result.target, target), "what is kept");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    Input input(data, size);
    const Kernels& path = input.path();
    Arguments arguments{};
    arguments.precision = static_cast<Precision>(input.byte() % 4);
    const std::size_t weights = 1 + input.two_bytes() % 300;
    arguments.room = input.two_bytes() % (weights + 1);
    arguments.threshold = std::bit_cast<float>(input.four_bytes());
    arguments.source.resize(weights);
    arguments.wide.resize(arguments.is_wide() ? weights : 0);
    arguments.narrow.resize(weights - arguments.wide.size());
    for (std::size_t i = 0; i < weights; ++i) {
        arguments.source[i] = std::bit_cast<float>(input.four_bytes());
        if (arguments.is_wide())
            arguments.wide[i] = std::bit_cast<float>(input.four_bytes());
        else
            arguments.narrow[i] = static_cast<std::uint16_t>(input.two_bytes());
    }
    const Arguments before = arguments;

    const Result expected = swept_by(portable_path(), arguments);
    const Result result = swept_by(path, arguments);
    require(same_bits(arguments.source, before.source) && same_bits(arguments.wide, before.wide) &&
                arguments.narrow == before.narrow,
            "source and delta stay");
    require(same(result.outcome, expected.outcome), "a path refuses what the portable one does");
    if (result.outcome.status != Status::ok) return 0;
    require(result.words == expected.words && result.swept.missed == expected.swept.missed,
            "a path sends what the portable one does");
    require(same_bits(result.target, expected.target), "a path keeps what the portable one does");
    if (arguments.is_wide()) check_against_plain_loop(result, arguments);
    return 0;
}
