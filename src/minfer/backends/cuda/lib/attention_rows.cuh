// What the two tiled attention kernels share: runs of rows, masks, the running softmax. A lane holds
// two rows of its warp's 16, g and g + 8, in the accumulator layout of `lib/mma.cuh`, which is also
// that of a warp in a warpgroup's product.
#include "lib/attention.cuh"

// Rows [first, end) of one sequence, and the range of their positions.
struct Run {
    int first, end, lowest, highest;

    // Whether some row of the tile must not see some key of [key, key + keys). `alone` says that the
    // tile has no rows but the run's.
    DEVICE bool masks(int key, int keys, int window, bool alone) const {
        return !alone || key + keys - 1 > lowest || (window > 0 && key <= highest - window);
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

// A lane's two rows: numbers and positions, -1 for padded rows and those past the end.
struct Rows {
    int row[2], position[2];

    DEVICE void set(int r, int number, int n_rows, const i32* positions) {
        row[r] = number;
        position[r] = number < n_rows ? positions[number] : -1;
    }
};

template <int N>
DEVICE void cap_scores(float (&s)[N][4], float scale, float cap) {
#pragma unroll
    for (int n = 0; n < N; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) s[n][i] = capped(s[n][i] * scale, cap);
}

// Take the scores of keys from `key` on away from the rows that do not see them.
template <int N>
DEVICE void mask_scores(float (&s)[N][4], int key, const Run& run, const Rows& rows, int window) {
    int t = threadIdx.x % 4;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        bool mine = rows.row[r] >= run.first && rows.row[r] < run.end;
        int last = mine ? rows.position[r] : -1;
        int first = window > 0 ? last - window + 1 : 0;
#pragma unroll
        for (int n = 0; n < N; n++)
#pragma unroll
            for (int i = 0; i < 2; i++) {
                int j = key + 8 * n + 2 * t + i;
                if (j > last || j < first) s[n][2 * r + i] = -INFINITY;
            }
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

// Turn scores into probabilities against the running maximum, rescaling what was summed before.
template <int N, int D>
DEVICE void softmax(float (&s)[N][4], State<D>& state, float factor, bool fresh) {
    float decay[2];
#pragma unroll
    for (int r = 0; r < 2; r++) {
        float best = -INFINITY;
#pragma unroll
        for (int n = 0; n < N; n++)
            best = fmaxf(best, fmaxf(s[n][2 * r], s[n][2 * r + 1]));
        best = fmaxf(best, __shfl_xor_sync(FULL_MASK, best, 1));
        best = fmaxf(best, __shfl_xor_sync(FULL_MASK, best, 2));
        float next = fmaxf(state.top[r], best * factor);
        float base = next == -INFINITY ? 0.0f : next;  // no key seen yet: 2^(-inf - 0) is 0
        decay[r] = exp2_of(state.top[r] - base);
        state.top[r] = next;
        float sum = 0.0f;
#pragma unroll
        for (int n = 0; n < N; n++)
#pragma unroll
            for (int i = 2 * r; i < 2 * r + 2; i++) {
                s[n][i] = exp2_of(__fmaf_rn(s[n][i], factor, -base));
                sum += s[n][i];
            }
        state.total[r] = state.total[r] * decay[r] + sum;
    }
    if (fresh || !__any_sync(FULL_MASK, decay[0] != 1.0f || decay[1] != 1.0f)) return;
#pragma unroll
    for (int n = 0; n < D / 8; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) state.out[n][i] *= decay[i / 2];
}
