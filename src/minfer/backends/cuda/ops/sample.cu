// A token for each row of logits: the best at temperature 0, else drawn from what the filters
// leave.
//
// Shapes:  logits f32 [rows][n_vocab]; sampling f32 [rows][5]: temperature, top_k (0 keeps all),
//          top_p, min_p, a uniform in [0, 1), an input of the step, read ahead of `pdl_wait`;
//          out i32 [rows]. Scratch: tops u64 [rows][BLOCKS], sums u64 [rows][KINDS][BINS], nearest
//          u16 [rows][CHUNKS][THREADS]. counters u32 [rows], zero before and after.
// Who:     grid (BLOCKS, rows), two launches. `sample_best`: each block finds the best of its
//          share, the last of a row the row's; rows at temperature 0 are done. `sample_draw`: each
//          block adds up its share by bins of the distance to the best; the last of a row chooses.
//          Tokens are ranked by one 64-bit key, logit then falling id, so what a filter keeps is
//          everything from some key up. The sums say in which bin a weight is reached; that bin's
//          tokens, and all above it if there is room, are gathered in shared memory and sorted. Of
//          each strand the nearest bin is noted, so few are read for what is near the best.
// Floor:   the logits once; greedy reads no more. A row that is drawn: twice, and by a single block
//          a little of them, or all where likely tokens are many.
// Numerics: weights are exp in f32 as 40-bit fixed point: sums do not depend on their order, so the
//          same logits give the same token. A row without a finite maximum gives -1.
// Versions: 1 (2026-11), bits of the key by one block, over the whole row: 393 us for a row of
//          152,064 with top-k 40 and top-p 0.95, 534 with top-p alone. 2: this, 32 and 58 us.
// Macros:  none.
#include "lib/base.cuh"

constexpr int THREADS = 1024, WARPS = THREADS / WARP, COLUMNS = 5;
constexpr int BINS = 2 * THREADS, KEPT = 2 * THREADS;  // two a thread
constexpr int LONG = 4, CHUNK = LONG * THREADS;        // a strand, and those of all threads
enum Kind { COUNT, SHARE, DRAWN, KINDS };  // weights: 1, at temperature 1, at the row's

// Ranks logits as floats do, NaN above all; equal logits by falling id. Never 0.
DEVICE u64 key_of(float logit, int id) {
    u32 bits = logit != logit ? 0x7fffffffu : __float_as_uint(logit);
    return (u64)(bits & 0x80000000u ? ~bits : bits | 0x80000000u) << 32 | (u32)~id;
}
DEVICE int id_of(u64 key) { return (int)~(u32)key; }
DEVICE float logit_of(u64 key) {
    u32 bits = (u32)(key >> 32);
    return __uint_as_float(bits & 0x80000000u ? bits ^ 0x80000000u : ~bits);
}

// f(logit, id) of a strand: N logits that a thread reads together, each THREADS behind another.
template <int N, class F>
DEVICE void strand(const float* logits, int n_vocab, int first, F f) {
    float some[N];
#pragma unroll
    for (int j = 0; j < N; j++) {
        int i = first + j * THREADS;
        some[j] = i < n_vocab ? logits[i] : -INFINITY;
    }
#pragma unroll
    for (int j = 0; j < N; j++) {
        int i = first + j * THREADS;
        if (i < n_vocab) f(some[j], i);
    }
}

DEVICE u64 warp_largest(u64 x) {
#pragma unroll
    for (int offset = 16; offset; offset /= 2) x = max(x, __shfl_xor_sync(FULL_MASK, x, offset));
    return x;
}

// ---- the best -----------------------------------------------------------------------------------

KERNEL __launch_bounds__(THREADS)
    sample_best(const float* logits, const float* sampling, i32* out, u64* tops, u64* sums,
                u32* counters, int n_vocab) {
    __shared__ u64 of_warps[WARPS];
    pdl_launch();
    int row = blockIdx.y, n_blocks = gridDim.x;
    bool draws = sampling[row * COLUMNS] > 0.0f;
    pdl_wait();
    u64 top = 0;
    logits += (i64)row * n_vocab;
    for (int first = blockIdx.x * CHUNK; first < n_vocab; first += n_blocks * CHUNK)
        strand<LONG>(logits, n_vocab, first + threadIdx.x,
                     [&](float logit, int id) { top = max(top, key_of(logit, id)); });
    if (draws)
        for (int i = blockIdx.x * THREADS + threadIdx.x; i < KINDS * BINS; i += n_blocks * THREADS)
            sums[(i64)row * KINDS * BINS + i] = 0;
    top = warp_largest(top);
    if (threadIdx.x % WARP == 0) of_warps[threadIdx.x / WARP] = top;
    __syncthreads();
    if (threadIdx.x > 0) return;
    for (int w = 1; w < WARPS; w++) top = max(top, of_warps[w]);
    tops += row * n_blocks;
    tops[blockIdx.x] = top;
    if (!arrive(counters + row, n_blocks)) return;
    for (int b = 0; b < n_blocks; b++) top = max(top, __ldcg(tops + b));
    tops[0] = top;
    out[row] = fabsf(logit_of(top)) < INFINITY ? id_of(top) : -1;
}

// ---- weights, in bins ---------------------------------------------------------------------------

struct Weights {
    float top, rate;  // the best logit, 1 / temperature
    float bins;       // that a distance of 1 spans

    // Rises as logits fall. What is in the last bin, 31.98 or more below the best, weighs nothing
    // at either temperature.
    DEVICE int bin(float logit) const { return (int)fminf((top - logit) * bins, BINS - 1); }

    // exp((logit - top) * rate) as fixed point, at most 2^40.
    DEVICE u64 of(Kind kind, float logit) const {
        if (kind == COUNT) return 1;
        float rate_ = kind == SHARE ? 1.0f : rate;
        return (u64)(expf((logit - top) * rate_) * 1099511627776.0f);
    }
};

// Sums of 64 bits that threads add to, as halves: shared memory adds 32 bits in one instruction, 64
// only by trying until no other thread was in between.
template <int N>
struct Tally {
    u32 low[N * BINS], high[N * BINS];

    DEVICE void clear() {
        for (int i = threadIdx.x; i < N * BINS; i += THREADS) low[i] = high[i] = 0;
    }
    DEVICE void add(int i, u64 x) {
        u32 before = atomicAdd(&low[i], (u32)x);
        u32 more = (u32)(x >> 32) + (before + (u32)x < before);
        if (more) atomicAdd(&high[i], more);
    }
    DEVICE u64 sum(int i) const { return (u64)high[i] << 32 | low[i]; }
};

struct Shared {
    union {
        Tally<KINDS> tally;     // of a block's share
        u64 upto[KINDS][BINS];  // then, of the row: each bin and those above it
    };
    union {
        Tally<2> fine;   // of one bin: COUNT and another
        u64 kept[KEPT];  // keys, largest first
    };
    u64 warps[WARPS];
    u64 before;
    int answer, n_kept, last;
};

// ---- the choice, by one block -------------------------------------------------------------------

// Sum over the threads up to this one and with it.
DEVICE u64 scan(Shared& shared, u64 x) {
#pragma unroll
    for (int offset = 1; offset < WARP; offset *= 2) {
        u64 other = __shfl_up_sync(FULL_MASK, x, offset);
        if (threadIdx.x % WARP >= offset) x += other;
    }
    __syncthreads();
    if (threadIdx.x % WARP == WARP - 1) shared.warps[threadIdx.x / WARP] = x;
    __syncthreads();
    for (int w = 0; w < threadIdx.x / WARP; w++) x += shared.warps[w];
    return x;
}

// Each thread has two weights in a row of them, `start` being the sum ahead of its own: which of
// them all reaches `target`, or -1. What is ahead of that one goes to `shared.before`.
DEVICE int crossing(Shared& shared, u64 start, u64 first, u64 second, u64 target) {
    __syncthreads();
    if (threadIdx.x == 0) shared.answer = -1;
    __syncthreads();
    if (start < target && target <= start + first + second) {
        bool is_first = target <= start + first;
        shared.answer = 2 * threadIdx.x + !is_first;
        shared.before = is_first ? start : start + first;
    }
    __syncthreads();
    return shared.answer;
}

// Sorts the keys kept, largest first: a bitonic network, a pair a thread.
DEVICE void sort(Shared& shared) {
    int n = 2;
    while (n < shared.n_kept) n *= 2;
    for (int i = shared.n_kept + threadIdx.x; i < n; i += THREADS) shared.kept[i] = 0;
    for (int run = 2; run <= n; run *= 2) {
        for (int step = run / 2; step; step /= 2) {
            __syncthreads();
            int i = 2 * threadIdx.x - threadIdx.x % step;
            if (i >= n) continue;
            u64 a = shared.kept[i], b = shared.kept[i + step];
            if ((a < b) != ((i & run) != 0)) {
                shared.kept[i] = b;
                shared.kept[i + step] = a;
            }
        }
    }
    __syncthreads();
}

// Finds tokens by the weight above them. Every thread of the block calls its functions.
struct Search {
    Shared& shared;
    const float* logits;
    const u16* nearest;
    int n_vocab;
    Weights weights;
    int first = 0, last = -1;  // bins whose tokens are kept

    template <class F>
    DEVICE void all(F f) const {
        constexpr int N = 2 * LONG;
        for (int first = 0; first < n_vocab; first += N * THREADS)
            strand<N>(logits, n_vocab, first + threadIdx.x, f);
    }
    // Of those strands alone that have a token in bin `end` or above it.
    template <class F>
    DEVICE void near(int end, F f) const {
        constexpr int AT_ONCE = 16;
        for (int first = 0; first < n_vocab; first += AT_ONCE * CHUNK) {
            u32 found = 0;
#pragma unroll
            for (int j = 0; j < AT_ONCE; j++) {
                int chunk = first / CHUNK + j;
                bool there = chunk * CHUNK < n_vocab;
                int bin = there ? __ldcg(nearest + chunk * THREADS + threadIdx.x) : BINS;
                found |= (u32)(bin <= end) << j;
            }
            for (; found; found &= found - 1)
                strand<LONG>(logits, n_vocab, first + (__ffs(found) - 1) * CHUNK + threadIdx.x, f);
        }
    }
    DEVICE u64 weight(Kind kind, u64 key) const { return weights.of(kind, logit_of(key)); }
    DEVICE u64 ahead(Kind kind, int bin) const { return bin ? shared.upto[kind][bin - 1] : 0; }

    template <class F>
    DEVICE void gather(bool few, F wanted) {
        __syncthreads();
        if (threadIdx.x == 0) shared.n_kept = 0;
        __syncthreads();
        auto take = [&](float logit, int id) {
            if (wanted(logit, id)) shared.kept[atomicAdd(&shared.n_kept, 1)] = key_of(logit, id);
        };
        if (few)
            near(last, take);
        else
            all(take);
        __syncthreads();
        sort(shared);
    }

    // Keeps the tokens of a bin, and of all above it if there is room; false if it has too many.
    DEVICE bool keep(int wanted) {
        if (first <= wanted && wanted <= last) return true;
        u64 end = shared.upto[COUNT][wanted];
        if (end - ahead(COUNT, wanted) > KEPT) return false;
        bool few = end <= KEPT;
        first = few ? 0 : wanted;
        last = wanted;
        gather(few, [&](float logit, int) {
            int bin = weights.bin(logit);
            return first <= bin && bin <= last;
        });
        return true;
    }

    // Keeps those tokens around the target of a bin that has too many: parts of its range of keys,
    // each a 2048th of the one before. Answers the weight ahead of them.
    DEVICE u64 narrow(Kind kind, int wanted, u64 target) {
        u64 low = ~0ull, high = 0, before = ahead(kind, wanted);
        all([&](float logit, int id) {
            if (weights.bin(logit) != wanted) return;
            low = min(low, key_of(logit, id));
            high = max(high, key_of(logit, id));
        });
        low = ~largest(~low);
        high = largest(high);
        for (u64 count = ~0ull; count > KEPT;) {
            int shift = 0;
            while (high - low >> shift >= BINS) shift++;
            __syncthreads();
            shared.fine.clear();
            __syncthreads();
            all([&](float logit, int id) {
                u64 key = key_of(logit, id);
                if (key < low || key > high) return;
                int part = (int)(high - key >> shift);
                shared.fine.add(part, 1);
                shared.fine.add(BINS + part, weights.of(kind, logit));
            });
            __syncthreads();
            u64 one = shared.fine.sum(BINS + 2 * threadIdx.x);
            u64 two = shared.fine.sum(BINS + 2 * threadIdx.x + 1);
            u64 start = before + scan(shared, one + two) - one - two;
            int part = crossing(shared, start, one, two, target);
            before = shared.before;
            count = shared.fine.sum(part);
            high -= (u64)part << shift;
            low = high - min(high - low, (1ull << shift) - 1);
        }
        last = -1;
        gather(false, [&](float logit, int id) {
            u64 key = key_of(logit, id);
            return low <= key && key <= high;
        });
        return before;
    }

    DEVICE u64 largest(u64 x) {
        x = warp_largest(x);
        __syncthreads();
        if (threadIdx.x % WARP == 0) shared.warps[threadIdx.x / WARP] = x;
        __syncthreads();
        for (int w = 0; w < WARPS; w++) x = max(x, shared.warps[w]);
        return x;
    }

    // The key at which the weights, summed from the best down, reach `target`; 0 if only tokens
    // that weigh nothing do.
    DEVICE u64 reach(Kind kind, u64 target) {
        int t = 2 * threadIdx.x;
        u64 start = ahead(kind, t), middle = shared.upto[kind][t], end = shared.upto[kind][t + 1];
        int there = crossing(shared, start, middle - start, end - middle, target);
        if (there < 0) return 0;
        u64 before = keep(there) ? ahead(kind, first) : narrow(kind, there, target);
        u64 one = t < shared.n_kept ? weight(kind, shared.kept[t]) : 0;
        u64 two = t + 1 < shared.n_kept ? weight(kind, shared.kept[t + 1]) : 0;
        start = before + scan(shared, one + two) - one - two;
        return shared.kept[crossing(shared, start, one, two, target)];
    }

    // The weight of all keys of at least `lowest`.
    DEVICE u64 total(Kind kind, u64 lowest) {
        int there = lowest ? weights.bin(logit_of(lowest)) : BINS - 1;
        if (there == BINS - 1) return shared.upto[kind][there];
        u64 sum = 0;
        bool kept = keep(there);
        auto add = [&](u64 key) { sum += key >= lowest ? weight(kind, key) : 0; };
        if (kept)
            for (int i = threadIdx.x; i < shared.n_kept; i += THREADS) add(shared.kept[i]);
        else
            all([&](float logit, int id) { add(key_of(logit, id)); });
        scan(shared, sum);  // leaves the warps' sums
        sum = kept ? ahead(kind, first) : 0;
        for (int w = 0; w < WARPS; w++) sum += shared.warps[w];
        return sum;
    }
};

// One block a multiprocessor: told so, no compiler saves registers for a second.
KERNEL __launch_bounds__(THREADS, 1)
    sample_draw(const float* logits, const float* sampling, i32* out, const u64* tops, u64* sums,
                u16* nearest, u32* counters, int n_vocab) {
    extern __shared__ __align__(16) u8 memory[];
    Shared& shared = *(Shared*)memory;
    pdl_launch();
    int row = blockIdx.y;
    const float* mine = logits + (i64)row * n_vocab;
    sampling += row * COLUMNS;
    float temperature = sampling[0], top_k = sampling[1], top_p = sampling[2];
    float min_p = sampling[3], uniform = sampling[4];
    if (temperature > 0.0f) shared.tally.clear();
    pdl_wait();
    if (!(temperature > 0.0f)) return;
    u64 top = tops[row * gridDim.x];
    float highest = logit_of(top);
    if (!(fabsf(highest) < INFINITY)) return;

    Weights weights = {highest, 1.0f / temperature, BINS / 32.0f / max(temperature, 1.0f)};
    __syncthreads();
    nearest += (i64)row * ((n_vocab + CHUNK - 1) / CHUNK) * THREADS;
    for (int first = blockIdx.x * CHUNK; first < n_vocab; first += gridDim.x * CHUNK) {
        int least = BINS - 1;
        strand<LONG>(mine, n_vocab, first + threadIdx.x, [&](float logit, int) {
            int bin = weights.bin(logit);
            least = min(least, bin);
            if (bin == BINS - 1) return;
            for (int kind = 0; kind < KINDS; kind++)
                shared.tally.add(kind * BINS + bin, weights.of((Kind)kind, logit));
        });
        nearest[first / LONG + threadIdx.x] = least;
    }
    __syncthreads();
    sums += (i64)row * KINDS * BINS;
    for (int i = threadIdx.x; i < KINDS * BINS; i += THREADS) {
        u64 sum = shared.tally.sum(i);
        if (sum) atomicAdd(&sums[i], sum);
    }
    __syncthreads();
    if (threadIdx.x == 0) shared.last = arrive(counters + row, gridDim.x);
    __syncthreads();
    if (!shared.last) return;

    for (int kind = 0; kind < KINDS; kind++) {
        int t = 2 * threadIdx.x;
        u64 one = __ldcg(sums + kind * BINS + t), two = __ldcg(sums + kind * BINS + t + 1);
        u64 upto = scan(shared, one + two);
        shared.upto[kind][t] = upto - two;
        shared.upto[kind][t + 1] = upto;
    }
    __syncthreads();
    Search search = {shared, mine, nearest, n_vocab, weights};
    u64 lowest = 0;  // of the keys that are left
#pragma unroll 1
    for (int k = COUNT; k < KINDS; k++) {  // top-k, top-p, then min-p and the draw
        Kind kind = (Kind)k;
        if (kind == COUNT && !(top_k >= 1.0f && top_k < n_vocab)) continue;
        if (kind == SHARE && !(top_p < 1.0f)) continue;
        if (kind == DRAWN && min_p > 0.0f) {
            // the lowest logit whose share of the best one's probability is at least min_p
            float bound = highest + logf(min_p);
            lowest = max(lowest, (u64)(u32)(key_of(bound, 0) >> 32) << 32);
        }
        u64 target = (u64)top_k;
        if (kind != COUNT) {
            u64 all = search.total(kind, min(lowest, top));
            double part = (double)(kind == SHARE ? top_p : uniform) * (double)all;
            target = kind == SHARE ? max((u64)ceil(part), 1ull) : min((u64)part + 1, all);
        }
        lowest = search.reach(kind, target);
    }
    if (threadIdx.x == 0) out[row] = id_of(lowest ? lowest : top);
}
