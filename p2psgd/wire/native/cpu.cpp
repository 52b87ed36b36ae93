#include "cpu.hpp"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace p2psgd {

#if defined(__x86_64__)
namespace {

struct Registers {
    unsigned a = 0, b = 0, c = 0, d = 0;
};

Registers cpuid(unsigned leaf) noexcept {
    Registers r;
    __get_cpuid_count(leaf, 0, &r.a, &r.b, &r.c, &r.d);  // leaves zeros if there is no such leaf
    return r;
}

bool saves_vector_registers() noexcept {
    unsigned low = 0, high = 0;
    asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return (low & 6) == 6;  // SSE and AVX state
}

bool amd_before_zen_3() noexcept {
    const Registers vendor = cpuid(0);
    const bool amd =
        vendor.b == 0x68747541 && vendor.d == 0x69746e65 && vendor.c == 0x444d4163;  // AuthenticAMD
    const bool hygon = vendor.b == 0x6f677948;                                       // HygonGenuine, a Zen 1
    const unsigned signature = cpuid(1).a;
    const unsigned family =
        (signature >> 8 & 0xF) + ((signature >> 8 & 0xF) == 0xF ? signature >> 20 & 0xFF : 0);
    return hygon || (amd && family < 0x19);
}

}  // namespace

Cpu detect_cpu() noexcept {
    const unsigned pclmul = 1u << 1, sse42 = 1u << 20, popcnt = 1u << 23, osxsave = 1u << 27, f16c = 1u << 29;
    const unsigned wanted = pclmul | sse42 | popcnt | osxsave | f16c;
    const unsigned bmi1 = 1u << 3, avx2 = 1u << 5, bmi2 = 1u << 8, lzcnt = 1u << 5;
    Cpu cpu;
    if ((cpuid(1).c & wanted) != wanted || !saves_vector_registers()) return cpu;
    const unsigned extended = cpuid(7).b;
    cpu.avx2 = (extended & (avx2 | bmi1)) == (avx2 | bmi1) && (cpuid(0x80000001).c & lzcnt) != 0;
    cpu.fast_pext = cpu.avx2 && (extended & bmi2) != 0 && !amd_before_zen_3();
    return cpu;
}
#else
Cpu detect_cpu() noexcept { return {}; }
#endif

}  // namespace p2psgd
