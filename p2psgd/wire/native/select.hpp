// The kernels of one instruction-set path, and which path this process uses.
//
// A table of function pointers, filled by hand: no ifunc and no target_clones, which not every linker and
// sanitizer knows. Callers take kernels() once and call through it.
#pragma once

#include <cstddef>

#include "apply.hpp"
#include "codec.hpp"
#include "crc32c.hpp"
#include "digest.hpp"
#include "numbers.hpp"
#include "residual.hpp"

namespace p2psgd {

struct Kernels {
    const char* name;    // what $P2PSGD_CPU and `python -m benchmarks.cpu` call it
    const char* demand;  // what a processor needs for it
    Encode* encode;
    EncodeAs* encode_as;
    Decode* decode;
    Measure* measure;
    ResidualPass* residual_pass;
    ApplyCoordinates* apply_coordinates;
    ApplyWeights* apply_weights;
    ApplyCoordinatesTogether* apply_coordinates_together;
    ApplyWeightsTogether* apply_weights_together;
    DigestWords* digest_words;
    DigestCoordinates* digest_coordinates;
    Crc32c* crc32c;
    AddNumbers* add_numbers;
    CheckNumbers* check_numbers;
    CopyNumbers* copy_numbers;
    MoveWeights* move_weights;
};

// All paths of this build, the slowest first: paths()[0] is the portable one.
const Kernels* paths() noexcept;
std::size_t paths_count() noexcept;

// Whether this processor and its operating system can run a path.
bool runs_here(const Kernels& path) noexcept;

// The path in use: at first the last that runs here.
const Kernels& kernels() noexcept;

// Uses the path of this name from now on; false, with nothing changed, if there is none or it does not run
// here.
bool use_path(const char* name) noexcept;

}  // namespace p2psgd
