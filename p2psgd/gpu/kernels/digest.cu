// What a slice of the working copy adds to a replica's digest: sum(coordinate_i * h(i)) mod 2^64, as
// wire/native/digest.hpp has it.

namespace {

typedef unsigned long long Word;

constexpr unsigned threads = 256;
constexpr unsigned lanes = 32;

__device__ __forceinline__ Word index_hash(Word index, Word key) {
    Word z = key + (index + 1) * 0x9E3779B97F4A7C15ull;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ z >> 27) * 0x94D049BB133111EBull;
    return (z ^ z >> 31) | 1;
}

}  // namespace

// weights[0..count) are those of the weights start, start + 1, ...; coordinate = weight * per_quantum, to the
// nearest integer. Adds to *digest. Any number of blocks of `threads`.
extern "C" __global__ void __launch_bounds__(threads)
    digest_weights(const float* __restrict__ weights, unsigned count, float per_quantum, Word key, Word start,
                   Word* digest) {
    Word sum = 0;
    for (Word i = Word{blockIdx.x} * threads + threadIdx.x; i < count; i += Word{gridDim.x} * threads) {
        const long long coordinate = __float2int_rn(weights[i] * per_quantum);
        sum += static_cast<Word>(coordinate) * index_hash(start + i, key);
    }
    for (unsigned distance = lanes / 2; distance; distance /= 2) {
        sum += __shfl_down_sync(0xFFFFFFFFu, sum, distance);
    }
    if (threadIdx.x % lanes == 0) atomicAdd(digest, sum);
}
