// Drives the core with random and with damaged input, in buffers of exactly the promised sizes; built with
// the address and undefined-behaviour sanitizers by test_sanitized.py. Usage: hostile_bytes PATH SEED ROUNDS,
// where PATH is the name of an instruction-set path. Exit code 1 and a line for a wrong result.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "limits.hpp"
#include "select.hpp"

namespace {

using namespace p2psgd;

std::mt19937_64 chance;

std::uint64_t below(std::uint64_t limit) { return chance() % limit; }

void require(bool condition, const char* what) {
    if (condition) return;
    std::printf("wrong: %s\n", what);
    std::exit(1);
}

struct Update {
    std::vector<std::uint32_t> words;
    std::uint64_t weights;
};

Update random_update() {
    const std::size_t most = below(4) == 0 ? 1100 : 20;
    const std::size_t count = 1 + below(most);
    Update update;
    std::uint64_t index = 0;
    const std::uint64_t magnitude = below(32);
    for (std::size_t i = 0; i < count; ++i) {
        index += below(std::uint64_t{1} << (below(3) == 0 ? magnitude : magnitude / 2));
        if (index >= weights_max) break;
        update.words.push_back(static_cast<std::uint32_t>(index << 1 | below(2)));
        ++index;
    }
    if (update.words.empty()) update.words.push_back(0);
    const std::uint64_t least = (update.words.back() >> 1) + std::uint64_t{1};
    update.weights = std::max<std::uint64_t>(least, std::min<std::uint64_t>(4 * count, weights_max));
    return update;
}

std::vector<std::uint8_t> encoded(const Update& update) {
    const std::size_t count = update.words.size();
    std::vector<std::uint8_t> payload(payload_bytes_max(count) + encode_slack);
    std::size_t bytes = 0;
    const Outcome outcome =
        kernels().encode(update.words.data(), count, update.weights, payload.data(), payload.size(), &bytes);
    require(outcome.status == Status::ok, "encode");
    require(bytes <= payload_bytes_max(count), "payload_bytes_max");
    return {payload.begin(), payload.begin() + static_cast<std::ptrdiff_t>(bytes)};
}

// Decodes from and into memory of exactly these sizes; whatever is accepted must be an update.
bool decoded(const std::vector<std::uint8_t>& payload, std::size_t count, std::uint64_t weights,
             std::vector<std::uint32_t>& words) {
    const std::vector<std::uint8_t> exact(payload.begin(), payload.end());
    words.assign(count, 0);
    words.shrink_to_fit();
    if (kernels().decode(exact.data(), exact.size(), count, weights, words.data()).status != Status::ok)
        return false;
    for (std::size_t i = 0; i < count; ++i) {
        require(words[i] >> 1 < weights, "an index outside");
        require(i == 0 || words[i - 1] >> 1 < words[i] >> 1, "unsorted words");
    }
    return true;
}

void damage(std::vector<std::uint8_t>& payload) {
    switch (below(5)) {
        case 0:
            payload.resize(below(payload.size() + 1));
            break;
        case 1:
            payload.push_back(static_cast<std::uint8_t>(below(256)));
            break;
        case 2:
            payload[0] = static_cast<std::uint8_t>(below(32));
            break;
        case 3:
            std::fill(payload.begin() + static_cast<std::ptrdiff_t>(below(payload.size())), payload.end(), 0);
            break;
        default:
            for (std::uint64_t flips = 1 + below(4); flips > 0; --flips)
                payload[below(payload.size())] ^= 1 << below(8);
    }
}

void try_payloads() {
    const Update update = random_update();
    std::vector<std::uint8_t> payload = encoded(update);
    std::vector<std::uint32_t> words;
    require(decoded(payload, update.words.size(), update.weights, words) && words == update.words,
            "round trip");
    for (int round = 0; round < 8; ++round) {
        std::vector<std::uint8_t> damaged = payload;
        damage(damaged);
        decoded(damaged, update.words.size(), update.weights, words);
        decoded(payload, 1 + below(1200), 1 + below(weights_max), words);
    }
    std::vector<std::uint8_t> noise(below(300));
    for (std::uint8_t& byte : noise) byte = static_cast<std::uint8_t>(below(256) & below(256));
    decoded(noise, 1 + below(30), 1 + below(weights_max), words);

    std::vector<std::uint32_t> unsorted = update.words;
    std::shuffle(unsorted.begin(), unsorted.end(), chance);
    std::vector<std::uint8_t> out(payload_bytes_max(unsorted.size()) + encode_slack);
    std::size_t bytes = 0;
    const bool taken =
        kernels()
            .encode(unsorted.data(), unsorted.size(), update.weights, out.data(), out.size(), &bytes)
            .status == Status::ok;
    require(taken == (unsorted == update.words), "encode takes exactly sorted words");
}

void try_arrays() {
    const std::size_t weights = 1 + below(300);
    std::normal_distribution<float> normal(0, 1);
    std::vector<float> residual(weights);
    std::vector<float> delta(weights);
    for (float& value : delta) value = normal(chance);
    if (below(8) == 0) delta[below(weights)] = std::numeric_limits<float>::infinity();
    std::vector<std::uint32_t> room(below(weights + 1));
    Swept swept{0, 0};
    std::vector<float> target(weights);
    std::vector<std::uint16_t> narrow(weights);
    for (std::uint16_t& bits : narrow) bits = static_cast<std::uint16_t>(chance());
    const Precision precision = static_cast<Precision>(below(4));
    const bool wide = precision == Precision::float32 || precision == Precision::negated;
    const void* values = wide ? static_cast<const void*>(delta.data()) : narrow.data();
    const Outcome outcome = kernels().residual_pass(residual.data(), {values, precision}, target.data(), weights, 1.0f,
                                          below(weights_max - weights + 1), room.data(), room.size(), &swept);
    require(outcome.status == Status::ok || outcome.status == Status::not_finite, "residual_pass");
    require(swept.count <= room.size() &&
                std::is_sorted(room.begin(), room.begin() + static_cast<std::ptrdiff_t>(swept.count)),
            "words of a pass");

    std::vector<std::uint32_t> words(below(20));
    for (std::uint32_t& word : words) word = static_cast<std::uint32_t>(below(2 * weights + (below(4) == 0)));
    std::vector<std::int32_t> coordinates(weights, static_cast<std::int32_t>(chance()));
    const std::uint64_t before = kernels().digest_coordinates(coordinates.data(), weights, 0, 7);
    const std::uint32_t step = static_cast<std::uint32_t>(1 + below(step_max));
    Largest largest{};
    const bool applied =
        kernels()
            .apply_coordinates(coordinates.data(), weights, words.data(), words.size(), step, &largest)
            .status == Status::ok;
    const bool inside =
        std::all_of(words.begin(), words.end(), [=](std::uint32_t word) { return word >> 1 < weights; });
    require(applied == inside, "apply_coordinates takes exactly indices inside");
    if (!applied)
        require(before == kernels().digest_coordinates(coordinates.data(), weights, 0, 7), "nothing changed");
    require((kernels().apply_weights(residual.data(), weights, words.data(), words.size(), 0.5f).status ==
             Status::ok) == inside,
            "apply_weights");
    kernels().digest_words(words.data(), words.size(), step, chance());
    const std::vector<std::uint8_t> data(below(400), 1);
    kernels().crc32c(data.data(), data.size(), 0);
    const std::size_t numbers = below(below(8) == 0 ? 5000 : 40);
    const std::vector<std::uint8_t> incoming(4 * numbers + 1, 1);
    std::vector<float> sums(numbers);
    kernels().add_numbers(incoming.data() + 1, sums.data(), sums.data(), numbers);
    kernels().check_numbers(sums.data(), numbers);
    kernels().copy_numbers(incoming.data() + 1, sums.data(), numbers);
    const std::vector<std::int32_t> old(numbers, 1);
    std::vector<std::int32_t> next(numbers);
    kernels().move_weights(old.data(), sums.data(), 0.5f, next.data(), numbers, below(5), chance());
}

// Some updates over one to three ranges of weights, some with an index outside.
void try_together() {
    const std::size_t weights = 1 + below(below(8) == 0 ? 90'000 : 300);
    std::vector<std::vector<std::uint32_t>> words(below(6));
    std::vector<CoordinateUpdate> steps;
    std::vector<WeightUpdate> amounts;
    bool inside = true;
    for (std::vector<std::uint32_t>& own : words) {
        own.resize(below(below(8) == 0 ? 3000 : 20));
        for (std::uint32_t& word : own)
            word = static_cast<std::uint32_t>(below(2 * weights + (below(200) == 0)));
        if (below(2) == 0) std::sort(own.begin(), own.end());
        inside &=
            std::all_of(own.begin(), own.end(), [=](std::uint32_t word) { return word >> 1 < weights; });
        steps.push_back({own.data(), own.size(), static_cast<std::uint32_t>(1 + below(1000))});
        amounts.push_back({own.data(), own.size(), static_cast<float>(steps.back().step)});
    }
    std::vector<std::int32_t> coordinates(weights);
    std::vector<std::int32_t> expected(weights);
    std::vector<float> values(weights);
    Largest largest{};
    const bool applied =
        kernels()
            .apply_coordinates_together(coordinates.data(), weights, steps.data(), steps.size(), &largest)
            .status == Status::ok;
    require(applied == inside, "apply_coordinates_together takes exactly indices inside");
    require(
        (kernels().apply_weights_together(values.data(), weights, amounts.data(), amounts.size()).status ==
         Status::ok) == inside,
        "apply_weights_together");
    if (inside) {
        for (const CoordinateUpdate& update : steps)
            kernels().apply_coordinates(expected.data(), weights, update.words, update.count, update.step,
                                        &largest);
    }
    require(coordinates == expected, "together is one after the other");
    require(std::equal(values.begin(), values.end(), expected.begin()), "also in floats");
}

}  // namespace

int main(int argc, char** argv) {
    if (argc != 4 || !use_path(argv[1])) return 2;
    chance.seed(std::stoull(argv[2]));
    for (std::uint64_t round = std::stoull(argv[3]); round > 0; --round) {
        try_payloads();
        try_arrays();
        try_together();
    }
    return 0;
}
