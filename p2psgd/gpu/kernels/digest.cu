// What the working copy's digest is: sum(coordinate_i * h(i)) mod 2^64 over all weights, as
// wire/native/digest.hpp has it for the replica.
//
// Coordinates are taken out of the weights' bits: a quantum is a power of two, so that dividing by it changes
// the exponent alone, and nothing here is arithmetic that -ftz=true could flush. What no coordinate gives
// counts as one that no weight has: a bit that has changed below the quantum is seen as well.

namespace {

typedef unsigned long long Word;

constexpr unsigned threads = 256;
constexpr unsigned lanes = 32;
constexpr unsigned exponent = 23;  // its lowest bit
constexpr int no_coordinate = -0x7FFFFFFF - 1;

__device__ __forceinline__ Word index_hash(Word index, Word key) {
    Word z = key + (index + 1) * 0x9E3779B97F4A7C15ull;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ z >> 27) * 0x94D049BB133111EBull;
    return (z ^ z >> 31) | 1;
}

// Of a weight with these bits; quantum = 2^-steps.
__device__ __forceinline__ int coordinate_of(unsigned bits, unsigned steps) {
    if (bits == 0) return 0;
    const unsigned scaled = bits + (steps << exponent);
    const int nearest = __float2int_rn(__uint_as_float(scaled));
    return nearest != 0 && __float_as_uint(__int2float_rn(nearest)) == scaled ? nearest : no_coordinate;
}

}  // namespace

// Adds the digest of weights[0..count) to *digest; `patterns`: the coordinates are the weights' bits, as in a
// dense ring. Any number of blocks of `threads`.
extern "C" __global__ void __launch_bounds__(threads)
    digest_weights(const float* __restrict__ weights, unsigned count, unsigned steps, unsigned patterns, Word key,
                   Word* digest) {
    Word sum = 0;
    for (Word i = Word{blockIdx.x} * threads + threadIdx.x; i < count; i += Word{gridDim.x} * threads) {
        const unsigned bits = __float_as_uint(weights[i]);
        const long long coordinate = patterns ? static_cast<int>(bits) : coordinate_of(bits, steps);
        sum += static_cast<Word>(coordinate) * index_hash(i, key);
    }
    for (unsigned distance = lanes / 2; distance; distance /= 2)
        sum += __shfl_down_sync(0xFFFFFFFFu, sum, distance);
    if (threadIdx.x % lanes == 0) atomicAdd(digest, sum);
}
