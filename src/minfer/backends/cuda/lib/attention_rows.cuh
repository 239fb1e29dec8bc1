// What the two tiled attention kernels share: runs of rows, masks, the running softmax. A lane
// holds two rows of its warp's 16, g and g + 8, in the accumulator layout of `lib/mma.cuh`, which
// is also that of a warp in a warpgroup's product.
#include "lib/act.cuh"
#include "lib/attention.cuh"

#ifndef HALVES
#define HALVES 0
#endif

// Rows [first, end) of one sequence, and the range of their positions.
struct Run {
    int first, end, lowest, highest;

    // Whether some row of the tile must not see some key of [key, key + keys). `alone` says that
    // the tile has no rows but the run's.
    DEVICE bool masks(int key, int keys, int window, bool alone) const {
        return !alone || key + keys - 1 > lowest || (window > 0 && key <= highest - window);
    }

    // The last key that a row sees: its position, -1 if it is not in the run.
    DEVICE int last_key(int row, const i32* positions) const {
        return row >= first && row < end ? positions[row] : -1;
    }
};

// The run that starts at row `first`; empty at a padded row. Every warp finds the same.
DEVICE Run find_run(int first, int limit, const i32* positions, const i32* seqs) {
    Run run = {first, first, 0x7fffffff, -1};
    int seq = seqs[first];
    for (bool open = true; open && run.end < limit;) {
        int row = run.end + threadIdx.x % WARP;
        int position = row < limit ? positions[row] : -1;
        bool same = position >= 0 && seqs[row] == seq;
        u32 others = ~__ballot_sync(FULL_MASK, same);
        int n = others ? __ffs(others) - 1 : WARP;
        open = n == WARP;
        bool mine = threadIdx.x % WARP < n;
        int low = mine ? position : 0x7fffffff, high = mine ? position : -1;
#pragma unroll
        for (int offset = 16; offset; offset /= 2) {
            low = min(low, __shfl_xor_sync(FULL_MASK, low, offset));
            high = max(high, __shfl_xor_sync(FULL_MASK, high, offset));
        }
        run.lowest = min(run.lowest, low);
        run.highest = max(run.highest, high);
        run.end += n;
    }
    return run;
}

template <int N>
DEVICE void cap_scores(float (&s)[N][4], float scale, float cap) {
#pragma unroll
    for (int n = 0; n < N; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) s[n][i] = capped(s[n][i] * scale, cap);
}

// Take away the scores of keys, from `key` on, that a lane's rows do not see: those past the row's
// last key (its position; -1 for a row that is not in the run), and those below its window.
template <int N>
DEVICE void mask_scores(float (&s)[N][4], int key, const int (&last)[2], int window) {
    int mine = key + threadIdx.x % 4 * 2;  // the lane's first; the others are constants away
#pragma unroll
    for (int r = 0; r < 2; r++) {
        int to = last[r] - mine, from = (window > 0 ? max(0, last[r] - window + 1) : 0) - mine;
#pragma unroll
        for (int n = 0; n < N; n++)
#pragma unroll
            for (int i = 0; i < 2; i++)
                if (8 * n + i > to || 8 * n + i < from) s[n][2 * r + i] = -INFINITY;
    }
}

// Sums of a lane's two rows over D head features.
template <int D>
struct State {
    float out[D / 8][4];
    float top[2], total[2];  // in base 2, scaled; the total is this lane's share

    DEVICE void clear() {
#pragma unroll
        for (int n = 0; n < D / 8; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) out[n][i] = 0.0f;
        top[0] = top[1] = -INFINITY;
        total[0] = total[1] = 0.0f;
    }

    // Divide by the sum of the probabilities; a row without keys gives 0.
    DEVICE void finish() {
#pragma unroll
        for (int r = 0; r < 2; r++) {
            total[r] += __shfl_xor_sync(FULL_MASK, total[r], 1);
            total[r] += __shfl_xor_sync(FULL_MASK, total[r], 2);
            float inverse = total[r] > 0.0f ? 1.0f / total[r] : 0.0f;
#pragma unroll
            for (int n = 0; n < D / 8; n++) {
                out[n][2 * r] *= inverse;
                out[n][2 * r + 1] *= inverse;
            }
        }
    }
};

// What a lane's sums so far are multiplied by, once a larger maximum is known.
struct Decay {
    float of[2];

    // Rescaling by 1, as for rows of another run, is left out; so is it before the first keys.
    DEVICE bool needed() const { return __any_sync(FULL_MASK, of[0] != 1.0f || of[1] != 1.0f); }
};

// Turn scores into probabilities against the running maximum.
template <int N, int D>
DEVICE Decay softmax(float (&s)[N][4], State<D>& state, float factor) {
    Decay decay;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        float best = -INFINITY;
#pragma unroll
        for (int n = 0; n < N; n++) best = fmaxf(best, fmaxf(s[n][2 * r], s[n][2 * r + 1]));
        best = fmaxf(best, __shfl_xor_sync(FULL_MASK, best, 1));
        best = fmaxf(best, __shfl_xor_sync(FULL_MASK, best, 2));
        float next = fmaxf(state.top[r], best * factor);
        float base = next == -INFINITY ? 0.0f : next;  // no key seen yet: 2^(-inf - 0) is 0
        decay.of[r] = exp2_of(state.top[r] - base);
        state.top[r] = next;
        float sum = 0.0f;
#pragma unroll
        for (int n = 0; n < N; n++)
#pragma unroll
            for (int i = 2 * r; i < 2 * r + 2; i++) {
                s[n][i] = exp2_of(__fmaf_rn(s[n][i], factor, -base));
                sum += s[n][i];
            }
        state.total[r] = state.total[r] * decay.of[r] + sum;
    }
    return decay;
}

template <int D>
DEVICE void rescale(State<D>& state, const Decay& decay) {
#pragma unroll
    for (int n = 0; n < D / 8; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) state.out[n][i] *= decay.of[i / 2];
}

// Write a lane's share of one of its rows of a head, number r of the two: pairs of values whose
// vectors no other lane has, but for heads that do not fill whole vectors.
template <int D>
DEVICE void write_ordered(const State<D>& state, void* y, int row, int r, int head, int t,
                          int padded_rows) {
    auto word = [&](int n) { return pack_act(state.out[n][2 * r], state.out[n][2 * r + 1]); };
    if constexpr (D % 128 == 0) {
#pragma unroll
        for (int s = 0; s < D / 128; s++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                int n = 16 * s + i;
                u64 to = ordered_offset(row, padded_rows, head * (D / 128) + s, 4 * i + t);
                *(uint4*)((u8*)y + to) = {word(n), word(n + 4), word(n + 8), word(n + 12)};
            }
    } else if constexpr (D == 64) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            u64 to = ordered_offset(row, padded_rows, head / 2, 4 * i + t) + head % 2 * 8;
            *(uint2*)((u8*)y + to) = {word(i), word(i + 4)};
        }
    } else {
#pragma unroll
        for (int n = 0; n < D / 8; n++)
            *pair_at(y, row, padded_rows, head * (D / 2) + 4 * n + t, true) = word(n);
    }
}

// Write the rows of (row, query head) pairs `pair` and `pair + 8`, which four lanes hold, for the
// product that alone reads them: y is halves (`lib/act.cuh`) of padded_rows rows, chunked, or
// ordered if the macro HALVES is 2. G is the number of query heads a kv head, t the lane's number
// in the four.
template <int G, int D>
DEVICE void write_halves(const State<D>& state, void* y, int pair, int t, int rows, int kv_head,
                         int padded_rows) {
    if constexpr (HALVES == 2) {
#pragma unroll
        for (int r = 0; r < 2; r++) {
            int row = (pair + 8 * r) / G, head = kv_head * G + (pair + 8 * r) % G;
            if (row < rows) write_ordered(state, y, row, r, head, t, padded_rows);
        }
        return;
    }
    pair += t / 2 * 8;
    int row = pair / G, head = kv_head * G + pair % G;
#pragma unroll
    for (int n = 0; n < D / 8; n += 2) {
        u32 words[4];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const float* x = state.out[n + i % 2] + i / 2 * 2;
            words[i] = pack_act(x[0], x[1]);
        }
        uint4 halves = traded(words, t);
        if (row < rows)
            *(uint4*)((u8*)y + vector_offset(row, padded_rows, head * (D / 8) + n + t % 2)) =
                halves;
    }
}
