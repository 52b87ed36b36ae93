// The Python face of the core: checks buffers, releases the GIL around the work, and turns a status into an
// exception. Nothing else.
//
// What each function means stands in p2psgd/wire/codec.py, their types in p2psgd/wire/_native.pyi.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "apply.hpp"
#include "batch.hpp"
#include "buffer.hpp"
#include "codec.hpp"
#include "counters.hpp"
#include "crc32c.hpp"
#include "digest.hpp"
#include "limits.hpp"
#include "numbers.hpp"
#include "refusing.hpp"
#include "residual.hpp"
#include "select.hpp"

namespace nb = nanobind;

namespace p2psgd {
namespace {

nb::bytes encode_words(nb::handle words_object, std::uint64_t weights) {
    const Buffer<const std::uint32_t> words(words_object, "words");
    check_weights(weights);
    if (words.size() < 1 || words.size() > indices_max(weights)) check({Status::count_out_of_range, 0});
    const std::size_t capacity = payload_bytes_max(words.size()) + encode_slack;
    // Not in the bytes object itself: the stable ABI cannot shrink one.
    const std::unique_ptr<std::uint8_t[]> room(new std::uint8_t[capacity]);
    std::size_t bytes = 0;
    Outcome outcome;
    {
        const nb::gil_scoped_release release;
        outcome = kernels().encode(words.data(), words.size(), weights, room.get(), capacity, &bytes);
    }
    check(outcome);
    return nb::bytes(room.get(), bytes);
}

// What is wrong with a payload and where.
using Fault = std::pair<Status, std::uint64_t>;

std::optional<Fault> decode_words(nb::handle payload_object, std::uint64_t weights, nb::handle words_object) {
    const Buffer<const std::uint8_t> payload(payload_object, "payload");
    const Buffer<std::uint32_t> words(words_object, "words");
    Outcome outcome;
    {
        const nb::gil_scoped_release release;
        outcome = kernels().decode(payload.data(), payload.size(), words.size(), weights, words.data());
    }
    if (outcome.status == Status::ok) return std::nullopt;
    return std::pair(outcome.status, outcome.where);
}

// The seven numbers of PayloadBits, or a fault.
nb::tuple measure_payload(nb::handle payload_object, std::uint64_t weights, std::size_t count) {
    const Buffer<const std::uint8_t> payload(payload_object, "payload");
    PayloadBits bits{};
    Outcome outcome;
    {
        const nb::gil_scoped_release release;
        outcome = kernels().measure(payload.data(), payload.size(), count, weights, &bits, nullptr);
    }
    if (outcome.status != Status::ok) return nb::make_tuple(outcome.status, outcome.where);
    return nb::make_tuple(bits.header, bits.remainder, bits.quotient, bits.sign, bits.dense, bits.blocks,
                          bits.sign_coded_blocks);
}

// The number of words, and the first weight that missed its turn.
template <typename Element>
std::pair<std::size_t, std::optional<std::size_t>> sweep(nb::handle source_object, nb::handle delta_object,
                                                         nb::handle target_object, nb::handle words_object,
                                                         Precision precision, double threshold,
                                                         std::size_t first) {
    const Buffer<const float> source(source_object, "source");
    const Buffer<const Element> delta(delta_object, "delta");
    const Buffer<float> target(target_object, "target");
    const Buffer<std::uint32_t> words(words_object, "words");
    const std::size_t weights = source.size();
    if (delta.size() != weights || target.size() != weights) {
        raise_value_error("source has " + std::to_string(weights) + " weights, delta " +
                          std::to_string(delta.size()) + " and target " + std::to_string(target.size()));
    }
    check_apart(target, "target", source, "source");
    check_apart(target, "target", delta, "delta");
    check_apart(target, "target", words, "words");
    check_apart(words, "words", source, "source");
    check_apart(words, "words", delta, "delta");
    const float limit = exact(threshold, "the threshold");
    Swept swept{};
    Outcome outcome;
    {
        const nb::gil_scoped_release release;
        outcome = kernels().residual_pass(source.data(), {delta.data(), precision}, target.data(), weights,
                                          limit, first, words.data(), words.size(), &swept);
    }
    check(outcome);
    return {swept.count, swept.missed == weights ? std::nullopt : std::optional(swept.missed)};
}

std::pair<std::size_t, std::optional<std::size_t>> sweep_residual(nb::handle source, nb::handle delta,
                                                                  nb::handle target, nb::handle words,
                                                                  Precision precision, double threshold,
                                                                  std::size_t first) {
    // float16 and bfloat16 come as their bits
    return precision == Precision::float32 || precision == Precision::negated
               ? sweep<float>(source, delta, target, words, precision, threshold, first)
               : sweep<std::uint16_t>(source, delta, target, words, precision, threshold, first);
}

std::pair<std::uint32_t, std::uint32_t> add_to_coordinates(nb::handle coordinates_object,
                                                           nb::handle words_object, std::uint32_t step) {
    const Buffer<std::int32_t> coordinates(coordinates_object, "coordinates");
    const Buffer<const std::uint32_t> words(words_object, "words");
    Largest largest{};
    Outcome outcome;
    {
        const nb::gil_scoped_release release;
        outcome = kernels().apply_coordinates(coordinates.data(), coordinates.size(), words.data(),
                                              words.size(), step, &largest);
    }
    check(outcome);
    return {largest.magnitude, largest.index};
}

void add_to_weights(nb::handle weights_object, nb::handle words_object, double amount) {
    const Buffer<float> weights(weights_object, "weights");
    const Buffer<const std::uint32_t> words(words_object, "words");
    const float change = exact(amount, "the amount");
    Outcome outcome;
    {
        const nb::gil_scoped_release release;
        outcome = kernels().apply_weights(weights.data(), weights.size(), words.data(), words.size(), change);
    }
    check(outcome);
}

std::pair<std::uint32_t, std::uint32_t> add_all_to_coordinates(nb::handle coordinates_object,
                                                               nb::sequence updates_object) {
    const Buffer<std::int32_t> coordinates(coordinates_object, "coordinates");
    const Batch<CoordinateUpdate> updates(
        updates_object, [](const std::uint32_t* words, std::size_t count, nb::handle step) {
            return CoordinateUpdate{words, count, number_of<std::uint32_t>(step, "a step")};
        });
    Largest largest{};
    Outcome outcome;
    {
        const nb::gil_scoped_release release;
        outcome = kernels().apply_coordinates_together(coordinates.data(), coordinates.size(), updates.data(),
                                                       updates.size(), &largest);
    }
    updates.check(outcome);
    return {largest.magnitude, largest.index};
}

void add_all_to_weights(nb::handle weights_object, nb::sequence updates_object) {
    const Buffer<float> weights(weights_object, "weights");
    const Batch<WeightUpdate> updates(
        updates_object, [](const std::uint32_t* words, std::size_t count, nb::handle amount) {
            return WeightUpdate{words, count, exact(number_of<double>(amount, "an amount"), "the amount")};
        });
    Outcome outcome;
    {
        const nb::gil_scoped_release release;
        outcome =
            kernels().apply_weights_together(weights.data(), weights.size(), updates.data(), updates.size());
    }
    updates.check(outcome);
}

std::uint64_t digest_of_words(nb::handle words_object, std::uint32_t step, std::uint64_t key) {
    const Buffer<const std::uint32_t> words(words_object, "words");
    if (step < 1 || step > step_max) check({Status::step_out_of_range, step});
    const nb::gil_scoped_release release;
    return kernels().digest_words(words.data(), words.size(), step, key);
}

std::uint64_t digest_of_coordinates(nb::handle coordinates_object, std::uint64_t key, std::uint64_t start) {
    const Buffer<const std::int32_t> coordinates(coordinates_object, "coordinates");
    if (start > weights_max || coordinates.size() > weights_max - start)
        check({Status::start_out_of_range, start});
    const nb::gil_scoped_release release;
    return kernels().digest_coordinates(coordinates.data(), coordinates.size(), start, key);
}

std::uint32_t crc32c_of(nb::handle data_object, std::uint32_t crc) {
    const Buffer<const std::uint8_t> data(data_object, "data");
    const nb::gil_scoped_release release;
    return kernels().crc32c(data.data(), data.size(), crc);
}

nb::tuple add_numbers_of(nb::handle incoming_object, nb::handle own_object, nb::handle sums_object) {
    const Buffer<const std::uint8_t> incoming(incoming_object, "incoming");
    const Buffer<const float> own(own_object, "own");
    const Buffer<float> sums(sums_object, "sums");
    if (incoming.size() != sums.size() * sizeof(float) || own.size() != sums.size())
        raise_value_error("incoming, own and sums must hold equally many numbers");
    NumberChecks checks{};
    {
        const nb::gil_scoped_release release;
        checks = kernels().add_numbers(incoming.data(), own.data(), sums.data(), sums.size());
    }
    return nb::make_tuple(checks.incoming, checks.sums, checks.finite);
}

std::pair<std::uint32_t, bool> check_numbers_of(nb::handle own_object) {
    const Buffer<const float> own(own_object, "own");
    const nb::gil_scoped_release release;
    const NumberChecks checks = kernels().check_numbers(own.data(), own.size());
    return {checks.sums, checks.finite};
}

std::uint32_t copy_numbers_of(nb::handle incoming_object, nb::handle numbers_object) {
    const Buffer<const std::uint8_t> incoming(incoming_object, "incoming");
    const Buffer<float> numbers(numbers_object, "numbers");
    if (incoming.size() != numbers.size() * sizeof(float))
        raise_value_error("incoming and numbers must hold equally many numbers");
    check_apart(incoming, "incoming", numbers, "numbers");
    const nb::gil_scoped_release release;
    return kernels().copy_numbers(incoming.data(), numbers.data(), numbers.size());
}

std::pair<std::uint64_t, std::uint64_t> move_weights_of(nb::handle old_object, nb::handle sums_object,
                                                        double factor, nb::handle next_object,
                                                        std::uint64_t key, std::uint64_t start) {
    const Buffer<const std::int32_t> old(old_object, "old");
    const Buffer<const float> sums(sums_object, "sums");
    const Buffer<std::int32_t> next(next_object, "next");
    if (sums.size() != old.size() || next.size() != old.size())
        raise_value_error("old, sums and next must hold equally many weights");
    check_apart(next, "next", old, "old");
    check_apart(next, "next", sums, "sums");
    if (start > weights_max || old.size() > weights_max - start) check({Status::start_out_of_range, start});
    const float scale = exact(factor, "the factor");
    const nb::gil_scoped_release release;
    const WeightDigests digests =
        kernels().move_weights(old.data(), sums.data(), scale, next.data(), old.size(), start, key);
    return {digests.old, digests.next};
}

// Every path: its name, what it demands of a processor, whether it runs here.
nb::list all_paths() {
    nb::list list;
    for (std::size_t i = 0; i < paths_count(); ++i) {
        const Kernels& path = paths()[i];
        list.append(nb::make_tuple(path.name, path.demand, runs_here(path)));
    }
    return list;
}

// Raises ValueError for a name that is no path's, or whose path does not run here.
void take_path(const char* name) {
    if (use_path(name)) return;
    std::string known;
    for (std::size_t i = 0; i < paths_count(); ++i) {
        if (runs_here(paths()[i])) known += (known.empty() ? "" : ", ") + std::string(paths()[i].name);
    }
    raise_value_error("there is no path \"" + std::string(name) +
                      "\" of the kernels on this processor; there are: " + known);
}

template <typename T>
T* counter_at(const Buffer<T>& counters, std::size_t index) {
    if (index >= counters.size()) {
        throw nb::index_error(
            ("counter " + std::to_string(index) + " of " + std::to_string(counters.size())).c_str());
    }
    return counters.data() + index;
}

std::uint64_t load_counter_of(nb::handle counters_object, std::size_t index) {
    const Buffer<const std::uint64_t> counters(counters_object, "counters");
    return load_counter(counter_at(counters, index));
}

void store_counter_of(nb::handle counters_object, std::size_t index, std::uint64_t value) {
    const Buffer<std::uint64_t> counters(counters_object, "counters");
    store_counter(counter_at(counters, index), value);
}

}  // namespace

NB_MODULE(_native, m) {
    nb::enum_<Status>(m, "Status")
        .value("COUNT_OUT_OF_RANGE", Status::count_out_of_range)
        .value("WEIGHTS_OUT_OF_RANGE", Status::weights_out_of_range)
        .value("INDEX_OUT_OF_RANGE", Status::index_out_of_range)
        .value("TRUNCATED", Status::truncated)
        .value("TRAILING_BYTES", Status::trailing_bytes)
        .value("PARAMETER_OUT_OF_RANGE", Status::parameter_out_of_range)
        .value("PADDING_NOT_ZERO", Status::padding_not_zero)
        .value("RUN_OUT_OF_RANGE", Status::run_out_of_range)
        .value("DIGITS_OUT_OF_RANGE", Status::digits_out_of_range)
        .value("COUNT_MISMATCH", Status::count_mismatch);
    nb::enum_<Precision>(m, "Precision")
        .value("FLOAT32", Precision::float32)
        .value("FLOAT16", Precision::float16)
        .value("BFLOAT16", Precision::bfloat16)
        .value("NEGATED", Precision::negated);
    m.attr("WEIGHTS_MAX") = weights_max;
    m.attr("BLOCK_GAPS") = block_gaps;
    m.attr("RICE_MAX") = rice_max;
    m.attr("STEP_MAX") = step_max;
    m.attr("TOGETHER_MAX") = together_max;
    m.def(
        "indices_max",
        [](std::uint64_t weights) {
            check_weights(weights);
            return indices_max(weights);
        },
        nb::arg("weights"));
    m.def(
        "payload_bytes_max", [](std::uint32_t count) { return payload_bytes_max(count); }, nb::arg("count"));
    m.def("encode", &encode_words, nb::arg("words"), nb::arg("weights"));
    m.def("decode", &decode_words, nb::arg("payload"), nb::arg("weights"), nb::arg("words"));
    m.def("measure", &measure_payload, nb::arg("payload"), nb::arg("weights"), nb::arg("count"));
    m.def("residual_pass", &sweep_residual, nb::arg("source"), nb::arg("delta"), nb::arg("target"),
          nb::arg("words"), nb::arg("precision"), nb::arg("threshold"), nb::arg("first"));
    m.def("apply_coordinates", &add_to_coordinates, nb::arg("coordinates"), nb::arg("words"),
          nb::arg("step"));
    m.def("apply_weights", &add_to_weights, nb::arg("weights"), nb::arg("words"), nb::arg("amount"));
    m.def("apply_coordinates_together", &add_all_to_coordinates, nb::arg("coordinates"), nb::arg("updates"));
    m.def("apply_weights_together", &add_all_to_weights, nb::arg("weights"), nb::arg("updates"));
    m.def("digest_words", &digest_of_words, nb::arg("words"), nb::arg("step"), nb::arg("key"));
    m.def("digest_coordinates", &digest_of_coordinates, nb::arg("coordinates"), nb::arg("key"),
          nb::arg("start"));
    m.def("paths", &all_paths);
    m.def("path", [] { return kernels().name; });
    m.def("use_path", &take_path, nb::arg("name"));
    m.def("crc32c", &crc32c_of, nb::arg("data"), nb::arg("crc"));
    m.def("add_numbers", &add_numbers_of, nb::arg("incoming"), nb::arg("own"), nb::arg("sums"));
    m.def("check_numbers", &check_numbers_of, nb::arg("own"));
    m.def("copy_numbers", &copy_numbers_of, nb::arg("incoming"), nb::arg("numbers"));
    m.def("move_weights", &move_weights_of, nb::arg("old"), nb::arg("sums"), nb::arg("factor"),
          nb::arg("next"), nb::arg("key"), nb::arg("start"));
    m.def("load_counter", &load_counter_of, nb::arg("counters"), nb::arg("index"));
    m.def("store_counter", &store_counter_of, nb::arg("counters"), nb::arg("index"), nb::arg("value"));
}

}  // namespace p2psgd
