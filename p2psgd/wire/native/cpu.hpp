// What this processor can do, by CPUID.
#pragma once

namespace p2psgd {

struct Cpu {
    bool avx2 = false;  // AVX2, BMI1, F16C, PCLMUL, POPCNT, LZCNT, SSE4.2, and an operating system that saves
                        // their registers
    bool fast_pext = false;  // BMI2 with pext and pdep in hardware
};

Cpu detect_cpu() noexcept;

}  // namespace p2psgd
