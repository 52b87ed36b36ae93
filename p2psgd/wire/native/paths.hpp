// The instruction-set paths: every source in kernels/ is compiled once for each, into a namespace of the
// path's name, with P2PSGD_PATH defined as that name. Same contracts, same bytes.
//
// `portable` is plain C++. `avx2` and `avx2_bmi2` are the same with those instructions allowed, and with code
// of their own where __AVX2__ or __BMI2__ is defined. They are two because AMD families before 0x19 (Zen 3)
// run pext and pdep in microcode, slower than plain code. Another path, such as NEON's, is a namespace here,
// one more compilation in CMakeLists.txt and a line in select.cpp.
#pragma once

#include "apply.hpp"
#include "codec.hpp"
#include "crc32c.hpp"
#include "digest.hpp"
#include "numbers.hpp"
#include "residual.hpp"

namespace p2psgd {

#define P2PSGD_DECLARE_PATH                              \
    Encode encode;                                       \
    EncodeAs encode_as;                                  \
    Measure measure;                                     \
    Decode decode;                                       \
    ResidualPass residual_pass;                          \
    ApplyCoordinates apply_coordinates;                  \
    ApplyWeights apply_weights;                          \
    ApplyCoordinatesTogether apply_coordinates_together; \
    ApplyWeightsTogether apply_weights_together;         \
    DigestWords digest_words;                            \
    DigestCoordinates digest_coordinates;                \
    Crc32c crc32c;                                       \
    AddNumbers add_numbers;                              \
    CheckNumbers check_numbers;                          \
    CopyNumbers copy_numbers;                            \
    MoveWeights move_weights;

namespace portable {
P2PSGD_DECLARE_PATH
}
namespace avx2 {
P2PSGD_DECLARE_PATH
}
namespace avx2_bmi2 {
P2PSGD_DECLARE_PATH
}

#undef P2PSGD_DECLARE_PATH

}  // namespace p2psgd
