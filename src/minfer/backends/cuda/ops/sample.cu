// A token for each row of logits: the best at temperature 0, else drawn from what the filters
// leave.
//
// Shapes:  logits f32 [rows][n_vocab]; sampling f32 [rows][5]: temperature, top_k (0 keeps all),
//          top_p, min_p, a uniform in [0, 1); out i32 [rows]. best u64 [rows][BLOCKS] scratch,
//          counters u32 [rows], zero before and after.
// Who:     grid (BLOCKS, rows): each block finds the best of its share; the last of a row to arrive
//          chooses. Tokens are ranked by one 64-bit key, logit then falling id, so what a filter
//          keeps is everything from some key up. A key is found by the weight above it, 11 bits a
//          pass over sums in 2048 bins. After top_k the few that are left stay in shared memory.
// Floor:   the logits once; greedy reads no more.
// Numerics: weights are exp in f32 as 40-bit fixed point: sums do not depend on their order, so the
//          same logits give the same token. A row without a finite maximum gives -1.
// Macros:  none.
#include "lib/base.cuh"

constexpr int THREADS = 1024, BINS = 2048, BIN_BITS = 11, KEPT = 2048, COLUMNS = 5;
constexpr int AT_ONCE = 4, CHUNK = AT_ONCE * THREADS;  // logits that are read together

struct Shared {
    u64 weights[BINS], largest[BINS];  // of each bin
    u32 counts[BINS];
    u64 kept[KEPT];
    u64 sums[THREADS / WARP];
    u64 answer, before;
    u32 n_kept;
    int last;
};

// Ranks logits as floats do, NaN above all; equal logits by falling id.
DEVICE u64 key_of(float logit, int id) {
    u32 bits = logit != logit ? 0x7fffffffu : __float_as_uint(logit);
    return (u64)(bits & 0x80000000u ? ~bits : bits | 0x80000000u) << 32 | (u32)~id;
}
DEVICE int id_of(u64 key) { return (int)~(u32)key; }
DEVICE float logit_of(u64 key) {
    u32 bits = (u32)(key >> 32);
    return __uint_as_float(bits & 0x80000000u ? bits ^ 0x80000000u : ~bits);
}

// The tokens left: keys of at least `lowest`, from the row or from shared memory.
struct Tokens {
    const float* logits;
    int n_vocab;
    const Shared* shared;
    bool in_shared;
    u64 lowest;

    template <class F>
    DEVICE void each(F f) const {
        if (in_shared) {
            for (int i = threadIdx.x; i < shared->n_kept; i += THREADS)
                if (shared->kept[i] >= lowest) f(shared->kept[i]);
        } else {
            for (int i = threadIdx.x; i < n_vocab; i += THREADS) {
                u64 key = key_of(logits[i], i);
                if (key >= lowest) f(key);
            }
        }
    }
};

DEVICE u64 warp_add(u64 x) {
#pragma unroll
    for (int offset = 16; offset; offset /= 2) x += __shfl_xor_sync(FULL_MASK, x, offset);
    return x;
}

// exp((logit - top) * rate) as fixed point; at most 2^40.
struct Weight {
    float top, rate;
    DEVICE u64 operator()(u64 key) const {
        return (u64)(expf((logit_of(key) - top) * rate) * 1099511627776.0f);
    }
};
struct One {
    DEVICE u64 operator()(u64) const { return 1; }
};

template <class W>
DEVICE u64 total_of(Shared& shared, const Tokens& tokens, W weight) {
    u64 sum = 0;
    tokens.each([&](u64 key) { sum += weight(key); });
    sum = warp_add(sum);
    __syncthreads();
    if (threadIdx.x % WARP == 0) shared.sums[threadIdx.x / WARP] = sum;
    __syncthreads();
    sum = 0;
    for (int w = 0; w < THREADS / WARP; w++) sum += shared.sums[w];
    return sum;
}

// The key at which the weights, summed from the largest key down, reach `target`; the lowest key
// there is, if they never do.
template <class W>
DEVICE u64 find(Shared& shared, const Tokens& tokens, W weight, u64 target) {
    u64 prefix = 0, before = 0;
    // keys that equal `prefix` from bit `above` on go to bins by their bits from `shift` on
    for (int above = 64, shift; above > 0; above = shift) {
        shift = max(above - BIN_BITS, 0);
        __syncthreads();
        for (int b = threadIdx.x; b < BINS; b += THREADS)
            shared.weights[b] = shared.largest[b] = shared.counts[b] = 0;
        if (threadIdx.x == 0) shared.answer = ~0ull;
        __syncthreads();
        tokens.each([&](u64 key) {
            if (above < 64 && key >> above != prefix >> above) return;
            u32 b = (u32)(key >> shift) & ((1u << (above - shift)) - 1);
            atomicAdd(&shared.weights[b], weight(key));
            atomicAdd(&shared.counts[b], 1u);
            atomicMax(&shared.largest[b], key);
        });
        __syncthreads();
        // thread i takes bins 2047 - 2i and 2046 - 2i: sums from the largest key down
        int high = BINS - 1 - 2 * threadIdx.x;
        u64 two = shared.weights[high] + shared.weights[high - 1], sum = two;
#pragma unroll
        for (int offset = 1; offset < WARP; offset *= 2) {
            u64 other = __shfl_up_sync(FULL_MASK, sum, offset);
            if (threadIdx.x % WARP >= offset) sum += other;
        }
        if (threadIdx.x % WARP == WARP - 1) shared.sums[threadIdx.x / WARP] = sum;
        __syncthreads();
        for (int w = 0; w < threadIdx.x / WARP; w++) sum += shared.sums[w];
        u64 start = before + sum - two, middle = start + shared.weights[high];
        // the bin where the target is reached; of several empty ones behind it none is taken
        if (start < target && target <= start + two) {
            bool first = target <= middle;
            shared.answer = first ? high : high - 1;
            shared.before = first ? start : middle;
        }
        __syncthreads();
        if (shared.answer == ~0ull) {  // never reached: the lowest key of the last bin that has one
            __syncthreads();
            if (threadIdx.x == 0) shared.largest[0] = ~0ull;
            __syncthreads();
            tokens.each([&](u64 key) { atomicMin(&shared.largest[0], key); });
            __syncthreads();
            return shared.largest[0];
        }
        u32 bin = (u32)shared.answer;
        before = shared.before;
        if (shared.counts[bin] == 1) return shared.largest[bin];
        prefix |= (u64)bin << shift;
    }
    return prefix;
}

// Keep what is left in shared memory, if there are at most KEPT.
DEVICE void keep(Shared& shared, Tokens& tokens) {
    __syncthreads();
    if (threadIdx.x == 0) shared.n_kept = 0;
    __syncthreads();
    tokens.each([&](u64 key) { shared.kept[atomicAdd(&shared.n_kept, 1u)] = key; });
    __syncthreads();
    tokens.in_shared = true;
}

KERNEL __launch_bounds__(THREADS) sample(const float* logits, const float* sampling, i32* out,
                                         u64* best, u32* counters, int n_vocab) {
    extern __shared__ __align__(16) u8 memory[];
    Shared& shared = *(Shared*)memory;
    pdl_launch();
    pdl_wait();
    int row = blockIdx.y;
    const float* mine = logits + (i64)row * n_vocab;
    u64 top = 0;
    for (int first = blockIdx.x * CHUNK; first < n_vocab; first += gridDim.x * CHUNK) {
        float some[AT_ONCE];
#pragma unroll
        for (int j = 0; j < AT_ONCE; j++) {
            int i = first + j * THREADS + threadIdx.x;
            some[j] = i < n_vocab ? mine[i] : -INFINITY;
        }
#pragma unroll
        for (int j = 0; j < AT_ONCE; j++) {
            int i = first + j * THREADS + threadIdx.x;
            if (i < n_vocab) top = max(top, key_of(some[j], i));
        }
    }
#pragma unroll
    for (int offset = 16; offset; offset /= 2)
        top = max(top, __shfl_xor_sync(FULL_MASK, top, offset));
    if (threadIdx.x % WARP == 0) shared.sums[threadIdx.x / WARP] = top;
    __syncthreads();
    if (threadIdx.x == 0) {
        for (int w = 1; w < THREADS / WARP; w++) top = max(top, shared.sums[w]);
        best[row * gridDim.x + blockIdx.x] = top;
        shared.last = arrive(counters + row, gridDim.x);
        if (shared.last) {
            for (int b = 0; b < gridDim.x; b++) top = max(top, __ldcg(best + row * gridDim.x + b));
            shared.answer = top;
        }
    }
    __syncthreads();
    if (!shared.last) return;
    top = shared.answer;
    float highest = logit_of(top), temperature = sampling[row * COLUMNS];
    if (!(fabsf(highest) < INFINITY) || temperature <= 0.0f) {
        if (threadIdx.x == 0) out[row] = fabsf(highest) < INFINITY ? id_of(top) : -1;
        return;
    }
    float top_k = sampling[row * COLUMNS + 1], top_p = sampling[row * COLUMNS + 2];
    float min_p = sampling[row * COLUMNS + 3], uniform = sampling[row * COLUMNS + 4];
    Tokens tokens = {mine, n_vocab, &shared, false, 0};
    Weight share = {highest, 1.0f};
    if (top_k >= 1.0f && top_k < n_vocab) {
        tokens.lowest = find(shared, tokens, One(), (u64)top_k);
        if (top_k <= KEPT) keep(shared, tokens);
    }
    u64 lowest = tokens.lowest;
    if (top_p < 1.0f) {
        double wanted = (double)top_p * (double)total_of(shared, tokens, share);
        lowest = find(shared, tokens, share, max((u64)ceil(wanted), 1ull));
    }
    if (min_p > 0.0f) {
        // the lowest logit whose share of the best one's probability is at least min_p
        float bound = highest + logf(min_p);
        lowest = max(lowest, (u64)(u32)(key_of(bound, 0) >> 32) << 32);
    }
    tokens.lowest = min(lowest, top);
    Weight drawn = {highest, 1.0f / temperature};
    double place = (double)uniform * (double)total_of(shared, tokens, drawn);
    u64 key = find(shared, tokens, drawn, (u64)place + 1);
    if (threadIdx.x == 0) out[row] = id_of(key);
}
