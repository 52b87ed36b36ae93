// The residual pass on the device: accumulate, threshold, emit, subtract, in one pass over memory.
//
// A block takes the next tile by a ticket, so that every tile before it is with a block that runs already. It
// writes the target at once as if all its words had room, tells the tiles after it how many words it has, and
// learns from those before it how many come before its own (decoupled look-back [Merrill and Garland 2016]).
// Then it writes its words where they belong. Should some find no room, the sums of their weights are made
// anew and put back.
//
// Compiled by NVRTC without headers, or by nvcc; --fmad=false and no fast-math, for the bits must be those of
// wire/native/kernels/residual.cpp. CuPy always adds -ftz=true, which makes plain float arithmetic flush
// denormals: float32 numbers are added by `add` alone, widened and compared as integers.

// As p2psgd/gpu/pass_state.py has it. Tiles are counted through all ranges, and begin at weights that are
// multiples of tile_weights: the first and the last of a range may reach beyond it.
struct alignas(16) Range {
    unsigned first_tile;
    unsigned begin, end;  // weights
    float threshold;
    unsigned words_begin, room;  // of the range's group
    unsigned group_first_tile;
    unsigned group;
};

namespace {

// Of a tile: number of the pass (31 bits), whether `count` is of all tiles so far (1 bit), count (32 bits).
typedef unsigned long long State;

constexpr unsigned threads = 256;
constexpr unsigned lanes = 32;
constexpr unsigned blocks_at_once = 4;  // at least, of a multiprocessor: leaves registers for all loads
constexpr unsigned warps = threads / lanes;
constexpr unsigned row_weights = 4;  // side by side, of one thread: 16 bytes of float32
constexpr unsigned rows = 4;         // of one thread, a warp's width apart
constexpr unsigned warp_weights = lanes * row_weights * rows;
constexpr unsigned tile_weights = warps * warp_weights;
constexpr unsigned thread_weights = row_weights * rows;
constexpr unsigned whole_warp = 0xFFFFFFFFu;
constexpr unsigned infinity_bits = 0x7F800000u;
constexpr State is_total = 1ull << 32;
constexpr unsigned epoch_shift = 33;

struct Shared {
    unsigned tile;
    unsigned range;
    unsigned counts[warps];  // words of each warp
    unsigned before;         // words of the group in earlier tiles
};

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

__device__ __forceinline__ unsigned magnitude(float value) { return __float_as_uint(value) & 0x7FFFFFFFu; }

struct Float32 {
    typedef float Bits;
    typedef float4 Row;
    static __device__ __forceinline__ float widen(float value) { return value; }
    static __device__ __forceinline__ void widen_row(Row row, float* wide) {
        wide[0] = row.x;
        wide[1] = row.y;
        wide[2] = row.z;
        wide[3] = row.w;
    }
};

// IEEE 754 binary16: 10 bits of fraction, an exponent that is 112 less than a float32's.
struct Float16 {
    typedef unsigned short Bits;
    typedef uint2 Row;
    static __device__ __forceinline__ float widen(unsigned bits) {
        const unsigned sign = (bits & 0x8000u) << 16;
        unsigned size = (bits & 0x7FFFu) << 13;
        if (size >= 0x7C00u << 13) {
            size |= infinity_bits;
        } else if (size >= 0x0400u << 13) {
            size += 112u << 23;
        } else if (size) {  // a denormal: its highest bit, of weight 2^(-24 + place), is not written in a float32
            const unsigned place = 31 - static_cast<unsigned>(__clz(static_cast<int>(size >> 13)));
            size = (103 + place) << 23 | (size << (10 - place) & 0x007FFFFFu);
        }
        return __uint_as_float(sign | size);
    }
    static __device__ __forceinline__ void widen_row(Row row, float* wide) {
        wide[0] = widen(row.x & 0xFFFFu);
        wide[1] = widen(row.x >> 16);
        wide[2] = widen(row.y & 0xFFFFu);
        wide[3] = widen(row.y >> 16);
    }
};

struct Bfloat16 {
    typedef unsigned short Bits;
    typedef uint2 Row;
    static __device__ __forceinline__ float widen(unsigned bits) { return __uint_as_float(bits << 16); }
    static __device__ __forceinline__ void widen_row(Row row, float* wide) {
        wide[0] = widen(row.x);
        wide[1] = __uint_as_float(row.x & 0xFFFF0000u);
        wide[2] = widen(row.y);
        wide[3] = __uint_as_float(row.y & 0xFFFF0000u);
    }
};

// The range that a tile belongs to: the last that begins at or before it.
__device__ __forceinline__ unsigned range_of(const Range* table, unsigned ranges, unsigned tile) {
    unsigned low = 0;
    for (unsigned high = ranges; high - low > 1;) {
        const unsigned middle = low + (high - low) / 2;
        if (table[middle].first_tile <= tile) {
            low = middle;
        } else {
            high = middle;
        }
    }
    return low;
}

// Of a whole warp: words of the group in the tiles from `first` to before `tile`, of which the nearest may
// yet be under way; 32 tiles at a time, back to one that knows the count of all before it.
__device__ unsigned look_back(const volatile State* states, unsigned first, unsigned tile, unsigned epoch) {
    const unsigned lane = threadIdx.x % lanes;
    unsigned before = 0;
    for (unsigned end = tile; end > first;) {
        const bool within = end - first > lane;
        State state = is_total;  // before the group there is nothing
        if (within) {
            state = states[end - 1 - lane];
            while (state >> epoch_shift != epoch) {
                __nanosleep(20);
                state = states[end - 1 - lane];
            }
        }
        const unsigned totals = __ballot_sync(whole_warp, (state & is_total) != 0);
        const unsigned nearest =
            totals ? static_cast<unsigned>(__ffs(static_cast<int>(totals))) - 1 : lanes - 1;
        unsigned count = lane <= nearest ? static_cast<unsigned>(state) : 0;
        for (unsigned distance = lanes / 2; distance; distance /= 2) {
            count += __shfl_down_sync(whole_warp, count, distance);
        }
        before += __shfl_sync(whole_warp, count, 0);
        if (totals) break;
        end -= lanes;
    }
    return before;
}

template <typename Delta>
struct Pass {
    const float* __restrict__ source;
    const typename Delta::Bits* __restrict__ delta;
    float* __restrict__ target;
    unsigned* __restrict__ words;
    const Range* __restrict__ table;
    unsigned ranges;
    unsigned first;  // index of source[0]
    bool vectors;    // source, delta and target are aligned to rows
    volatile State* states;
    unsigned* ticket;
    unsigned first_ticket;
    unsigned epoch;
    State* not_finite;  // epoch, complement of the first place (tile, weight in it) with such a sum
    unsigned* totals;   // of each range: words of its group up to its end
    unsigned* missed;   // of each group: its first weight without room

    __device__ __forceinline__ float sum(unsigned weight) const {
        return add(source[weight], Delta::widen(delta[weight]));
    }

    __device__ __forceinline__ void run(Shared& shared) const {
        const unsigned thread = threadIdx.x;
        if (thread == 0) {
            shared.tile = atomicAdd(ticket, 1u) - first_ticket;
            shared.range = range_of(table, ranges, shared.tile);
        }
        __syncthreads();
        const unsigned tile = shared.tile;
        const Range range = table[shared.range];
        const unsigned tile_begin = (range.begin / tile_weights + (tile - range.first_tile)) * tile_weights;
        // The first of this thread's weights; those of its row r are lanes * row_weights * r further on.
        const unsigned begin = tile_begin + thread / lanes * warp_weights + thread % lanes * row_weights;

        unsigned crossed = 0, negative = 0;  // a bit for each weight of this thread
        if (vectors && tile_begin >= range.begin && range.end - tile_begin >= tile_weights) {
            sweep_rows(range, begin, tile, crossed, negative);
        } else {
            sweep_singly(range, begin, tile, crossed, negative);
        }

        // Where the words of each row begin in the warp: a warp's row has up to 128, and 8 bits each do.
        unsigned row_counts = 0;
        unsigned row_begins[rows] = {};
        unsigned warp_count = 0;
        if (__ballot_sync(whole_warp, crossed != 0)) {
            for (unsigned row = 0; row < rows; ++row) {
                row_counts |= static_cast<unsigned>(__popc(crossed >> row * row_weights & 15u)) << 8 * row;
            }
            unsigned up_to = row_counts;
            for (unsigned distance = 1; distance < lanes; distance *= 2) {
                const unsigned from = __shfl_up_sync(whole_warp, up_to, distance);
                if (thread % lanes >= distance) up_to += from;
            }
            const unsigned all = __shfl_sync(whole_warp, up_to, lanes - 1);
            for (unsigned row = 0; row < rows; ++row) {
                row_begins[row] = warp_count + (up_to - row_counts >> 8 * row & 255u);
                warp_count += all >> 8 * row & 255u;
            }
        }
        if (thread % lanes == 0) shared.counts[thread / lanes] = warp_count;
        __syncthreads();

        unsigned rank = 0, tile_count = 0;
        for (unsigned warp = 0; warp < warps; ++warp) {
            if (warp == thread / lanes) rank = tile_count;
            tile_count += shared.counts[warp];
        }
        if (thread < lanes) {
            const State state = static_cast<State>(epoch) << epoch_shift;
            unsigned before = 0;
            if (tile != range.group_first_tile) {
                if (thread == 0) states[tile] = state | tile_count;
                before = look_back(states, range.group_first_tile, tile, epoch);
            }
            if (thread == 0) {
                states[tile] = state | is_total | (before + tile_count);
                shared.before = before;
                const unsigned last =
                    range.first_tile + (range.end - 1) / tile_weights - range.begin / tile_weights;
                if (tile == last) totals[shared.range] = before + tile_count;
            }
        }
        __syncthreads();
        if (!crossed) return;
        rank += shared.before;
        for (unsigned row = 0; row < rows; ++row) {
            unsigned place = rank + row_begins[row];
            unsigned row_crossed = crossed >> row * row_weights & 15u;
            for (; row_crossed; row_crossed &= row_crossed - 1, ++place) {
                const unsigned bit =
                    row * row_weights + static_cast<unsigned>(__ffs(static_cast<int>(row_crossed))) - 1;
                const unsigned weight = begin + row * lanes * row_weights + bit % row_weights;
                if (place < range.room) {
                    words[range.words_begin + place] = first + weight << 1 | (negative >> bit & 1u);
                } else {
                    target[weight] = sum(weight);
                    if (place == range.room) missed[range.group] = weight;
                }
            }
        }
    }

    // One sum: notes whether it crosses, and returns what the target becomes if its word finds room.
    __device__ __forceinline__ float settle(float sum, float threshold, unsigned bit, unsigned& crossed,
                                            unsigned& negative) const {
        const bool crosses = magnitude(sum) > __float_as_uint(threshold);
        const unsigned sign = __float_as_uint(sum) >> 31;
        crossed |= static_cast<unsigned>(crosses) << bit;
        negative |= sign << bit;
        const float opposite = __uint_as_float(__float_as_uint(threshold) | (sign ^ 1) << 31);
        return crosses ? add(sum, opposite) : sum;
    }

    __device__ __forceinline__ void note_not_finite(unsigned tile, unsigned weight) const {
        const unsigned place = tile * tile_weights + weight % tile_weights;
        atomicMax(not_finite, static_cast<State>(epoch) << 32 | (0xFFFFFFFFu - place));
    }

    // A tile that lies wholly in its range.
    __device__ __forceinline__ void sweep_rows(const Range& range, unsigned begin, unsigned tile,
                                               unsigned& crossed, unsigned& negative) const {
        const float4* const source_rows = reinterpret_cast<const float4*>(source + begin);
        const typename Delta::Row* const delta_rows =
            reinterpret_cast<const typename Delta::Row*>(delta + begin);
        float4* const target_rows = reinterpret_cast<float4*>(target + begin);
        float4 from_source[rows];
        typename Delta::Row from_delta[rows];
#pragma unroll
        for (unsigned row = 0; row < rows; ++row) {  // all loads are under way before the first is used
            from_source[row] = source_rows[row * lanes];
            from_delta[row] = delta_rows[row * lanes];
        }
        unsigned largest = 0;
#pragma unroll
        for (unsigned row = 0; row < rows; ++row) {
            float sums[row_weights];
            Delta::widen_row(from_delta[row], sums);
            sums[0] = add(from_source[row].x, sums[0]);
            sums[1] = add(from_source[row].y, sums[1]);
            sums[2] = add(from_source[row].z, sums[2]);
            sums[3] = add(from_source[row].w, sums[3]);
#pragma unroll
            for (unsigned i = 0; i < row_weights; ++i) {
                largest = max(largest, magnitude(sums[i]));
                sums[i] = settle(sums[i], range.threshold, row * row_weights + i, crossed, negative);
            }
            float4 to;
            to.x = sums[0];
            to.y = sums[1];
            to.z = sums[2];
            to.w = sums[3];
            target_rows[row * lanes] = to;
        }
        if (largest >= infinity_bits) {
#pragma unroll 1
            for (unsigned bit = 0; bit < thread_weights; ++bit) {
                const unsigned weight = begin + bit / row_weights * lanes * row_weights + bit % row_weights;
                if (magnitude(sum(weight)) >= infinity_bits) note_not_finite(tile, weight);
            }
        }
    }

    // Any tile: weights outside of the range are left alone.
    __device__ __forceinline__ void sweep_singly(const Range& range, unsigned begin, unsigned tile,
                                                 unsigned& crossed, unsigned& negative) const {
        for (unsigned bit = 0; bit < thread_weights; ++bit) {
            const unsigned weight = begin + bit / row_weights * lanes * row_weights + bit % row_weights;
            if (weight < range.begin || weight >= range.end) continue;
            const float added = sum(weight);
            if (magnitude(added) >= infinity_bits) note_not_finite(tile, weight);
            target[weight] = settle(added, range.threshold, bit, crossed, negative);
        }
    }
};

}  // namespace

// One block of `threads` for each tile. `results` are not_finite, totals and missed; see Pass and
// gpu/pass_state.py.
#define RESIDUAL_PASS(name, Delta)                                                                         \
    extern "C" __global__ void __launch_bounds__(threads, blocks_at_once) name(                            \
        const float* source, const Delta::Bits* delta, float* target, unsigned* words, const Range* table, \
        unsigned ranges, unsigned first, unsigned vectors, State* states, unsigned* ticket,                \
        unsigned first_ticket, unsigned epoch, State* not_finite, unsigned* totals, unsigned* missed) {    \
        __shared__ Shared shared;                                                                          \
        const Pass<Delta> pass = {source,       delta, target,       words,  table,                        \
                                  ranges,       first, vectors != 0, states, ticket,                       \
                                  first_ticket, epoch, not_finite,   totals, missed};                      \
        pass.run(shared);                                                                                  \
    }

RESIDUAL_PASS(residual_pass_float32, Float32)
RESIDUAL_PASS(residual_pass_float16, Float16)
RESIDUAL_PASS(residual_pass_bfloat16, Bfloat16)
