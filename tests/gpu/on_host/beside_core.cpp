// The kernels and the native core with the same random input in memory of just its size, under sanitizers:
// neither touches a byte outside, nothing is undefined, and both give the same bits. Arguments: seed, cases.
#include "cuda_on_host.hpp"

namespace residual {
#include "residual.cu"
}
namespace apply {
#include "apply.cu"
}
namespace digest {
#include "digest.cu"
}

#include <algorithm>
#include <bit>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <vector>

#include "launch.hpp"
#include "paths.hpp"

namespace {

using cuda_on_host::Adapted;
using cuda_on_host::Kernel;
using residual::Range;
using residual::State;
using residual::tile_weights;

std::mt19937_64 chance;

std::size_t below(std::size_t end) { return static_cast<std::size_t>(chance() % end); }

void require(bool holds, const char* what) {
    if (holds) return;
    std::printf("%s\n", what);
    std::exit(1);
}

// A launch with these arguments, whose sizes are those of the kernel's.
template <typename... Arguments>
void launch(const Kernel& kernel, std::size_t blocks, Arguments... arguments) {
    require(kernel.arguments == sizeof...(arguments), "another number of arguments");
    void* pointers[] = {&arguments...};
    const cuda_on_host::Schedule schedule{static_cast<cuda_on_host::Order>(below(3)), chance(),
                                          static_cast<unsigned>(1 + below(6))};
    const char* refusal = cuda_on_host::run(kernel, static_cast<unsigned>(blocks), 256, pointers, schedule);
    require(refusal == nullptr, refusal);
}

std::vector<float> numbers(std::size_t count, float spread) {
    std::normal_distribution<float> draw(0, spread);
    std::vector<float> made(count);
    for (float& number : made) number = draw(chance);
    return made;
}

// One group of up to four ranges, in turn from any of them on.
void sweep() {
    const std::size_t sizes[] = {1 + below(200), 1 + below(3 * tile_weights),
                                 (1 + below(2)) * tile_weights - 1 + below(3)};
    const std::size_t weights = sizes[below(3)];
    const std::vector<float> source = numbers(weights, 0.5f), values = numbers(weights, 0.5f);
    std::vector<unsigned short> halves(weights);
    for (std::size_t i = 0; i < weights; ++i)
        halves[i] = static_cast<unsigned short>(std::bit_cast<std::uint32_t>(values[i]) >> 16 & 0xBFFF);
    const auto precision = static_cast<p2psgd::Precision>(below(3));
    const p2psgd::Delta delta{
        precision == p2psgd::Precision::float32 ? static_cast<const void*>(values.data()) : halves.data(),
        precision};
    const std::size_t room = below(weights + 1);
    std::vector<std::size_t> cuts{0, weights};
    for (std::size_t more = below(4); more--;) cuts.push_back(below(weights));
    std::sort(cuts.begin(), cuts.end());
    cuts.erase(std::unique(cuts.begin(), cuts.end()), cuts.end());

    std::vector<Range> table;
    unsigned tiles = 0;
    const std::size_t turn = below(cuts.size() - 1);
    for (std::size_t i = 0; i + 1 < cuts.size(); ++i) {
        const std::size_t place = (turn + i) % (cuts.size() - 1);
        const auto begin = static_cast<unsigned>(cuts[place]), end = static_cast<unsigned>(cuts[place + 1]);
        table.push_back({tiles, begin, end, 1.0f, 0, static_cast<unsigned>(room), 0, 0});
        tiles += (end - 1) / tile_weights - begin / tile_weights + 1;
    }

    std::vector<float> expected(weights, -7.0f), target(weights, -7.0f);
    std::vector<unsigned> expected_words(room), words(room), totals(table.size()), missed(1, 0xFFFFFFFFu);
    std::size_t found = 0;
    unsigned expected_missed = 0xFFFFFFFFu;
    for (const Range& range : table) {
        const std::size_t size = precision == p2psgd::Precision::float32 ? 4 : 2;
        const p2psgd::Delta part{static_cast<const char*>(delta.values) + size * range.begin, precision};
        p2psgd::Swept swept{};
        const auto outcome = p2psgd::portable::residual_pass(
            source.data() + range.begin, part, expected.data() + range.begin, range.end - range.begin, 1.0f,
            range.begin, expected_words.data() + found, room - found, &swept);
        require(outcome.status == p2psgd::Status::ok, "the core refuses");
        found += swept.count;
        if (swept.missed != range.end - range.begin && expected_missed == 0xFFFFFFFFu)
            expected_missed = range.begin + static_cast<unsigned>(swept.missed);
    }

    static constexpr Kernel sweeps[] = {
        Adapted<residual::residual_pass_float32>::kernel("float32"),
        Adapted<residual::residual_pass_float16>::kernel("float16"),
        Adapted<residual::residual_pass_bfloat16>::kernel("bfloat16"),
    };
    const std::size_t row_bytes = precision == p2psgd::Precision::float32 ? 16 : 8;
    const bool vectors = !((reinterpret_cast<std::uintptr_t>(source.data()) |
                            reinterpret_cast<std::uintptr_t>(target.data())) %
                           16) &&
                         !(reinterpret_cast<std::uintptr_t>(delta.values) % row_bytes);
    std::vector<State> states(tiles), not_finite(1);
    std::vector<unsigned> ticket(1, 5);
    launch(sweeps[static_cast<int>(precision)], tiles, source.data(), delta.values, target.data(),
           words.data(), table.data(), static_cast<unsigned>(table.size()), 0u,
           static_cast<unsigned>(vectors), states.data(), ticket.data(), 5u, 1u, not_finite.data(),
           totals.data(), missed.data());
    require(std::memcmp(target.data(), expected.data(), 4 * weights) == 0, "the targets differ");
    require(std::min<std::size_t>(totals.back(), room) == found, "the counts differ");
    require(
        std::equal(words.begin(), words.begin() + static_cast<std::ptrdiff_t>(found), expected_words.begin()),
        "the words differ");
    require(missed[0] == expected_missed, "another weight is missed");
}

void apply_some() {
    const std::size_t weights = 1 + below(500), updates = 1 + below(6);
    std::vector<float> values(weights), expected;
    for (float& value : values) value = static_cast<float>(below(1000));
    expected = values;
    std::vector<unsigned> words, offsets{0};
    std::vector<float> amounts;
    for (std::size_t update = 0; update < updates; ++update) {
        for (std::size_t count = below(3) ? below(700) : 0; count--;)
            words.push_back(static_cast<unsigned>(below(weights) << 1 | below(2)));
        offsets.push_back(static_cast<unsigned>(words.size()));
        amounts.push_back(static_cast<float>(1 + below(9)));
        for (std::size_t i = offsets[update]; i < words.size(); ++i)
            expected[words[i] >> 1] += words[i] & 1 ? -amounts[update] : amounts[update];
    }
    words.shrink_to_fit();
    if (words.empty()) return;
    const bool vectors = reinterpret_cast<std::uintptr_t>(words.data()) % 16 == 0;
    launch(Adapted<apply::apply_updates>::kernel("apply"), (words.size() + 1023) / 1024, values.data(),
           static_cast<unsigned>(weights), words.data(), static_cast<unsigned>(words.size()), offsets.data(),
           amounts.data(), static_cast<unsigned>(updates), static_cast<unsigned>(vectors));
    require(values == expected, "the weights differ");
}

void digest_some() {
    std::vector<int> coordinates(1 + below(3000));
    std::vector<float> values;
    for (int& coordinate : coordinates) {
        coordinate = static_cast<int>(below(1 << 25)) - (1 << 24);
        values.push_back(static_cast<float>(coordinate) * 0x1p-20f);
    }
    values.shrink_to_fit();
    const std::uint64_t key = chance();
    unsigned long long digest = 0;
    launch(Adapted<digest::digest_weights>::kernel("digest"), 1 + below(5), values.data(),
           static_cast<unsigned>(values.size()), 20u, 0u, static_cast<unsigned long long>(key), &digest);
    require(digest == p2psgd::portable::digest_coordinates(coordinates.data(), coordinates.size(), 0, key),
            "the digests differ");
}

}  // namespace

int main(int, char** arguments) {
    chance.seed(std::strtoull(arguments[1], nullptr, 10));
    for (unsigned long cases = std::strtoul(arguments[2], nullptr, 10); cases--;) {
        sweep();
        apply_some();
        digest_some();
    }
}
