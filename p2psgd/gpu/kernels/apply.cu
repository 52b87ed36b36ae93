// Many updates applied to the working copy at once: an amount added or subtracted at every word's index. All
// weights and amounts are multiples of one quantum, so that the order, which atomics leave open, does not
// matter.
//
// The hardware's float atomics flush denormals; a quantum of 2^-30 or more has none. The weights of a dense
// ring may be any: theirs is arithmetic that keeps denormals although CuPy always adds -ftz=true.

namespace {

constexpr unsigned threads = 256;
constexpr unsigned thread_words = 4;

// Rounded to nearest, denormals kept whatever the compiler is told: PTX without .ftz.
__device__ __forceinline__ float add(float a, float b) {
#ifdef CUDA_ON_HOST
    return cuda_on_host::add(a, b);
#else
    float sum;
    asm("add.rn.f32 %0, %1, %2;" : "=f"(sum) : "f"(a), "f"(b));
    return sum;
#endif
}
__device__ __forceinline__ float multiply(float a, float b) {
#ifdef CUDA_ON_HOST
    return cuda_on_host::multiply(a, b);
#else
    float product;
    asm("mul.rn.f32 %0, %1, %2;" : "=f"(product) : "f"(a), "f"(b));
    return product;
#endif
}

}  // namespace

// offsets[0..updates] ascend from 0 to count: update u has words[offsets[u]..offsets[u + 1]). Blocks of
// `threads`, each thread with `thread_words` words; `vectors`: words is aligned to 16 bytes. An index outside
// is left out.
extern "C" __global__ void __launch_bounds__(threads)
    apply_updates(float* weights, unsigned weights_count, const unsigned* __restrict__ words, unsigned count,
                  const unsigned* __restrict__ offsets, const float* __restrict__ amounts, unsigned updates,
                  unsigned vectors) {
    const unsigned begin = (blockIdx.x * threads + threadIdx.x) * thread_words;
    if (begin >= count) return;
    const unsigned own = count - begin < thread_words ? count - begin : thread_words;
    unsigned mine[thread_words];
    if (vectors && own == thread_words) {
        const uint4 four = *reinterpret_cast<const uint4*>(words + begin);
        mine[0] = four.x;
        mine[1] = four.y;
        mine[2] = four.z;
        mine[3] = four.w;
    } else {
#pragma unroll
        for (unsigned i = 0; i < thread_words; ++i) mine[i] = i < own ? words[begin + i] : 0;
    }
    unsigned update = 0;  // the last that begins at or before the first word
    for (unsigned high = updates; high - update > 1;) {
        const unsigned middle = update + (high - update) / 2;
        if (offsets[middle] <= begin) {
            update = middle;
        } else {
            high = middle;
        }
    }
    unsigned end = offsets[update + 1];
    float amount = amounts[update];
#pragma unroll
    for (unsigned i = 0; i < thread_words; ++i) {
        if (i == own) return;
        if (begin + i >= end) {
            do end = offsets[++update + 1];
            while (begin + i >= end);  // updates without words
            amount = amounts[update];
        }
        if (mine[i] >> 1 < weights_count)
            atomicAdd(weights + (mine[i] >> 1), mine[i] & 1u ? -amount : amount);
    }
}

// weights += numbers * factor, both of `count`, each product and each sum rounded. Blocks of `threads`.
extern "C" __global__ void __launch_bounds__(threads)
    add_scaled(float* __restrict__ weights, const float* __restrict__ numbers, float factor, unsigned count) {
    const unsigned i = blockIdx.x * threads + threadIdx.x;
    if (i < count) weights[i] = add(weights[i], multiply(numbers[i], factor));
}
