// The updates of a call that applies many together, as they come from Python: tuples of words and a number.
#pragma once

#include <nanobind/nanobind.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "apply.hpp"
#include "buffer.hpp"
#include "refusing.hpp"
#include "status.hpp"

namespace p2psgd {

template <typename T>
T number_of(nanobind::handle object, const char* what) {
    T value;
    if (!nanobind::try_cast(object, value))
        throw nanobind::type_error((std::string(what) + " does not fit").c_str());
    return value;
}

// Holds the words as buffers until the call ends.
template <typename Update>
class Batch {
  public:
    // make(words, count, number) gives the Update of a pair's words and number.
    template <typename Make>
    Batch(nanobind::sequence pairs, const Make& make) {
        for (nanobind::handle pair : pairs) {
            if (!nanobind::isinstance<nanobind::tuple>(pair) || nanobind::len(pair) != 2)
                throw nanobind::type_error("every update must be a tuple of its words and a number");
            if (updates_.size() == together_max)
                raise_value_error("more than " + std::to_string(together_max) + " updates in one call");
            const auto& words = words_.emplace_back(pair[0], "words");
            updates_.push_back(make(words.data(), words.size(), pair[1]));
        }
    }

    const Update* data() const noexcept { return updates_.data(); }
    std::size_t size() const noexcept { return updates_.size(); }

    // An outcome names an update, by its position in the batch.
    static void check(Outcome outcome) {
        if (outcome.status == Status::ok) return;
        const std::string update = "update " + std::to_string(outcome.where);
        switch (outcome.status) {
            case Status::index_out_of_range:
                raise_value_error(update + " has an index that is not below the number of weights");
            case Status::step_out_of_range:
                raise_value_error(update + " has a step that is not within 1 to 2**20 quanta");
            case Status::amount_not_positive:
                raise_value_error(update + " has an amount that is not positive and finite");
            default: p2psgd::check(outcome);
        }
    }

  private:
    std::deque<Buffer<const std::uint32_t>> words_;  // a deque: a Buffer stays where it is made
    std::vector<Update> updates_;
};

}  // namespace p2psgd
