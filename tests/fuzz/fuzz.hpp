// What the fuzz targets share: taking numbers off an input, and ending when something is wrong.
//
// Every target defines LLVMFuzzerTestOneInput (LLVM's interface), which libFuzzer or replay.cpp calls. Arrays
// given to the core are vectors of exactly the promised sizes, so that the address sanitizer sees a byte
// beyond.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "limits.hpp"
#include "select.hpp"

namespace p2psgd::fuzz {

// A wrong result is a crash, as a bad access is.
inline void require(bool condition, const char* what) {
    if (condition) return;
    std::fprintf(stderr, "wrong: %s\n", what);
    std::abort();
}

// The bytes of an input, front to back; zeros once they are over.
class Input {
  public:
    Input(const std::uint8_t* data, std::size_t size) : at_(data), end_(data + size) {}

    bool over() const { return at_ == end_; }
    std::uint32_t byte() { return over() ? 0 : *at_++; }
    std::uint32_t two_bytes() {
        const std::uint32_t low = byte();
        return low | byte() << 8;
    }
    std::uint32_t four_bytes() {
        const std::uint32_t low = two_bytes();
        return low | two_bytes() << 16;
    }
    std::vector<std::uint8_t> rest() { return {at_, end_}; }

    // Mostly few, at times more than three blocks.
    std::size_t count() {
        const std::uint32_t value = two_bytes();
        return 1 + (value < 0x8000 ? value % 40 : value % 1600);
    }

    // Every number up to 3,121, every magnitude up to 2^31.
    std::uint64_t weights() {
        const std::uint32_t value = two_bytes();
        const std::uint64_t weights = 1 + (std::uint64_t{value / 21} << value % 21);
        return weights < weights_max ? weights : weights_max;
    }

    // A path that runs here; not the portable one, to which it is compared, unless there is no other.
    const Kernels& path() {
        const std::uint32_t value = byte();
        std::size_t last = paths_count() - 1;
        while (!runs_here(paths()[last])) --last;
        return last == 0 ? paths()[0] : paths()[1 + value % last];
    }

  private:
    const std::uint8_t* at_;
    const std::uint8_t* end_;
};

inline const Kernels& portable_path() { return paths()[0]; }

inline bool same(Outcome one, Outcome other) {
    return one.status == other.status && one.where == other.where;
}

}  // namespace p2psgd::fuzz
