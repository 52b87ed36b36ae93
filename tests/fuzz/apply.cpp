// Updates to a replica, its digest, a checksum. Input: path (1 byte), weights (2), then updates: count (1),
// step (1), words (3 each).
//
// Applied together on any path, updates give what they give one after the other by a plain loop; an index
// outside changes nothing; the digest changes by the updates' contributions.
#include "crc32c.hpp"
#include "fuzz.hpp"

using namespace p2psgd;
using namespace p2psgd::fuzz;

namespace {

constexpr std::uint64_t key = 850;

struct Update {
    std::vector<std::uint32_t> words;
    std::uint32_t step;
};

// Now and then an index outside; often sorted, as decoded words are.
std::vector<Update> read_updates(Input& input, std::size_t weights) {
    std::vector<Update> updates;
    while (!input.over()) {
        Update update{{}, 0};
        const std::uint32_t count = input.byte();
        update.step = 1 + input.byte();
        std::uint32_t index = 0;
        for (std::uint32_t i = 0; i < count % 64 && !input.over(); ++i) {
            const std::uint32_t value = input.two_bytes() | input.byte() << 16;
            index = count < 128 ? index + value % 1024 : value;
            if (index >= weights && value % 7 != 0) index %= static_cast<std::uint32_t>(weights);
            update.words.push_back(index << 1 | value >> 23);
        }
        update.words.shrink_to_fit();
        updates.push_back(update);
    }
    return updates;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    Input input(data, size);
    const Kernels& path = input.path();
    // A single range of the walk: nets of several are too slow here, and test_apply_together.py's.
    const std::size_t weights = 1 + input.two_bytes() % 700;
    const std::vector<Update> updates = read_updates(input, weights);
    if (updates.size() > together_max) return 0;

    std::vector<std::int32_t> expected(weights);
    bool inside = true;
    std::uint64_t digest = 0;
    std::vector<CoordinateUpdate> steps;
    std::vector<WeightUpdate> amounts;
    for (const Update& update : updates) {
        for (const std::uint32_t word : update.words) inside = inside && word >> 1 < weights;
        steps.push_back({update.words.data(), update.words.size(), update.step});
        amounts.push_back({update.words.data(), update.words.size(), static_cast<float>(update.step)});
        digest += path.digest_words(update.words.data(), update.words.size(), update.step, key);
    }
    for (const Update& update : updates) {
        if (!inside) break;
        for (const std::uint32_t word : update.words)
            expected[word >> 1] +=
                static_cast<std::int32_t>((word & 1) != 0 ? 0u - update.step : update.step);
    }

    std::vector<std::int32_t> alone(weights);
    std::vector<std::int32_t> together(weights);
    std::vector<float> values(weights);
    Largest largest{};
    const bool taken =
        path.apply_coordinates_together(together.data(), weights, steps.data(), steps.size(), &largest)
            .status == Status::ok;
    require(taken == inside, "exactly indices inside are taken together");
    require((path.apply_weights_together(values.data(), weights, amounts.data(), amounts.size()).status ==
             Status::ok) == inside,
            "also in floats");
    for (const CoordinateUpdate& update : steps) {
        const Outcome outcome =
            path.apply_coordinates(alone.data(), weights, update.words, update.count, update.step, &largest);
        require(!inside || outcome.status == Status::ok, "an update alone is taken");
    }
    require(together == expected, "together is one after the other");
    require(!inside || alone == expected, "and so is alone");
    for (std::size_t i = 0; i < weights; ++i)
        require(values[i] == static_cast<float>(expected[i]), "floats are the integers");
    if (inside) {
        require(path.digest_coordinates(expected.data(), weights, 0, key) == digest, "the digest is linear");
        require(portable_path().digest_coordinates(expected.data(), weights, 0, key) == digest,
                "and the same on every path");
    }
    const std::vector<std::uint8_t> bytes(data, data + size);
    require(path.crc32c(bytes.data(), size, 7) == portable_path().crc32c(bytes.data(), size, 7),
            "checksums are the same on every path");
    return 0;
}
