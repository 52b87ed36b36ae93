// As much of CUDA C++ as the kernels use, on the host: included before an unchanged .cu file.
//
// Every thread of a block is a fiber that runs until it must wait: at __syncthreads, for the other lanes at a
// warp operation, at an atomic operation (where it may be made to) and at __nanosleep, which every loop that
// waits for another block has to call. Several blocks are under way at a time; whose turn it is, is chosen in
// order, in reverse or at random. Shared memory begins as garbage. Only one launch runs at a time, on one
// thread of the host.
//
// Denormals are flushed (where the host's processor can: x86), as in all kernels that CuPy compiles, but for
// what a kernel adds and multiplies by PTX that does not flush, here by cuda_on_host::add and multiply.
//
// What it does not show: how the hardware orders memory operations of different threads between those points.
#pragma once

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>
#if defined(__SSE__)
#include <xmmintrin.h>
#endif

#define CUDA_ON_HOST
#define __global__
#define __device__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __shared__ __attribute__((section("cuda_shared"))) static
#define threadIdx (cuda_on_host::here->thread_index)
#define blockIdx (cuda_on_host::here->block_index)
#define blockDim (cuda_on_host::launch.block_dim)
#define gridDim (cuda_on_host::launch.grid_dim)

struct dim3_on_host {
    unsigned x, y, z;
};
struct alignas(16) float4 {
    float x, y, z, w;
};
struct alignas(8) uint2 {
    unsigned x, y;
};
struct alignas(16) uint4 {
    unsigned x, y, z, w;
};

namespace cuda_on_host {

// What a thread is and what it waits for.
struct Place {
    dim3_on_host thread_index, block_index;
};
struct Launch {
    dim3_on_host block_dim, grid_dim;
};
extern thread_local Place* here;
extern Launch launch;

enum class Operation : unsigned { shuffle, shuffle_up, shuffle_down, ballot, synchronize };

// Waits until every thread of the block has come here or ended.
void wait_for_block();
// Waits until all lanes have come to the same operation; returns what each of the 32 gave.
const std::uint64_t* exchange(Operation operation, unsigned mask, std::uint64_t given);
// Lets others run; `waits`: there is nothing to do for this thread until another one has done something.
void give_way(bool waits);
[[noreturn]] void fail(const char* sentence);

inline unsigned lane() noexcept { return here->thread_index.x % 32; }

template <typename Value>
Value shuffled(Operation operation, unsigned mask, Value value, unsigned from, unsigned own) {
    static_assert(sizeof(Value) == 4 || sizeof(Value) == 8);
    std::uint64_t bits = 0;
    std::memcpy(&bits, &value, sizeof value);
    const std::uint64_t* given = exchange(operation, mask, bits);
    bits = given[from < 32 ? from : own];
    std::memcpy(&value, &bits, sizeof value);
    return value;
}

// While it lives, denormals are taken for zeros or kept.
class Denormals {
public:
#if defined(__SSE__)
    explicit Denormals(bool flushed) noexcept : before(_mm_getcsr()) {
        _mm_setcsr(flushed ? before | flush_bits : before & ~flush_bits);
    }
    ~Denormals() { _mm_setcsr(before); }

private:
    static constexpr unsigned flush_bits = 0x8040;  // of results, of operands
    unsigned before;
#else
    explicit Denormals(bool) noexcept {}
#endif
};

// add.rn.f32 and mul.rn.f32. Volatile: the compiler knows nothing of modes of the processor.
inline float add(float a, float b) noexcept {
    const volatile float left = a, right = b;
    const Denormals kept(false);
    const volatile float sum = left + right;
    return sum;
}
inline float multiply(float a, float b) noexcept {
    const volatile float left = a, right = b;
    const Denormals kept(false);
    const volatile float product = left * right;
    return product;
}

// The hardware's float atomics on global memory take denormals for zeros.
inline float flushed(float value) noexcept {
    return std::fpclassify(value) == FP_SUBNORMAL ? std::copysign(0.0f, value) : value;
}

}  // namespace cuda_on_host

inline void __syncthreads() { cuda_on_host::wait_for_block(); }
inline void __syncwarp(unsigned mask = 0xFFFFFFFFu) {
    cuda_on_host::exchange(cuda_on_host::Operation::synchronize, mask, 0);
}
inline void __nanosleep(unsigned) { cuda_on_host::give_way(true); }

template <typename Value>
Value __shfl_sync(unsigned mask, Value value, int source) {
    return cuda_on_host::shuffled(cuda_on_host::Operation::shuffle, mask, value,
                                  static_cast<unsigned>(source) % 32, 0);
}
template <typename Value>
Value __shfl_up_sync(unsigned mask, Value value, unsigned distance) {
    const unsigned own = cuda_on_host::lane();
    return cuda_on_host::shuffled(cuda_on_host::Operation::shuffle_up, mask, value, own - distance, own);
}
template <typename Value>
Value __shfl_down_sync(unsigned mask, Value value, unsigned distance) {
    const unsigned own = cuda_on_host::lane();
    return cuda_on_host::shuffled(cuda_on_host::Operation::shuffle_down, mask, value, own + distance, own);
}
inline unsigned __ballot_sync(unsigned mask, int predicate) {
    const std::uint64_t* given =
        cuda_on_host::exchange(cuda_on_host::Operation::ballot, mask, predicate != 0);
    unsigned votes = 0;
    for (unsigned lane = 0; lane < 32; ++lane) votes |= static_cast<unsigned>(given[lane]) << lane;
    return votes;
}
inline int __any_sync(unsigned mask, int predicate) { return __ballot_sync(mask, predicate) != 0; }
inline int __all_sync(unsigned mask, int predicate) { return __ballot_sync(mask, predicate) == 0xFFFFFFFFu; }

template <typename Value>
Value atomicAdd(Value* place, std::type_identity_t<Value> value) {
    cuda_on_host::give_way(false);
    const Value before = *place;
    if constexpr (std::is_same_v<Value, float>) {
        *place = cuda_on_host::flushed(cuda_on_host::flushed(before) + cuda_on_host::flushed(value));
    } else {
        *place = before + value;
    }
    return before;
}
template <typename Value>
Value atomicMax(Value* place, std::type_identity_t<Value> value) {
    cuda_on_host::give_way(false);
    const Value before = *place;
    if (value > before) *place = value;
    return before;
}

inline int __popc(unsigned value) noexcept { return std::popcount(value); }
inline int __ffs(int value) noexcept { return __builtin_ffs(value); }
inline int __clz(int value) noexcept { return std::countl_zero(static_cast<unsigned>(value)); }
inline int __float_as_int(float value) noexcept { return std::bit_cast<int>(value); }
inline unsigned __float_as_uint(float value) noexcept { return std::bit_cast<unsigned>(value); }
inline float __int_as_float(int bits) noexcept { return std::bit_cast<float>(bits); }
inline float __uint_as_float(unsigned bits) noexcept { return std::bit_cast<float>(bits); }
inline int __float2int_rn(float value) noexcept {
    if (std::isnan(value)) return 0;
    if (value >= 0x1p31f) return 0x7FFFFFFF;
    if (value <= -0x1p31f) return -0x7FFFFFFF - 1;
    return static_cast<int>(std::nearbyint(value));
}
inline float __int2float_rn(int value) noexcept { return static_cast<float>(value); }
inline unsigned min(unsigned a, unsigned b) noexcept { return a < b ? a : b; }
inline unsigned max(unsigned a, unsigned b) noexcept { return a > b ? a : b; }
