// Outputs whose sums lie in shared memory: those of a block, or of each block of a cluster.
#include "lib/norm_between.cuh"
#include "lib/pipeline.cuh"

#if !BULK_COPIES  // no clusters: bodies for branches that are never taken
DEVICE void cluster_sync() {}
DEVICE u32 cluster_address(u32 shared, u32 rank) { return shared; }
DEVICE void cluster_leave() {}
#endif

// Adds sums [m][PITCH] for m < rows at the shared address `sums` of each of N_RANKS blocks, in
// order of rank, and writes N outputs of each row from column `column` on: every block some rows, a
// thread four columns. All N_THREADS of all blocks call it once they have written sums; one block
// needs no cluster. `scales` is null, or in shared memory a factor for each row of sums; UNIT is
// that of outputs which are prepared for a norm.
template <int N_RANKS, int KIND, int N, int PITCH, int N_THREADS, int UNIT>
DEVICE void finish_together(const Output& y, u32 sums, const float* scales, int rank, int column,
                            int rows) {
    static_assert(N_RANKS == 1 || BULK_COPIES, "no clusters on this card");
    constexpr int FOURS = N / 4, AT_ONCE = N_THREADS / FOURS;
    static_assert(AT_ONCE > 0, "a thread has a row's columns");
    int group = threadIdx.x / FOURS, four = threadIdx.x % FOURS;
    int n = four / 4 * 16 + four % 4 * 2, m = group < AT_ONCE ? group * N_RANKS + rank : rows;
    bool prepares = KIND == PLAIN_OUT && y.columns;
    // loaded ahead of the barrier, and of later rows a row ahead
    Four factors = {}, norm = {};
    Added added = {};
    if (m < rows) factors = y.factors<KIND>(column + n);
    if (m < rows && prepares) norm = y.pairs(y.norm, column + n);
    if (m < rows && KIND == PLAIN_OUT) added = y.added(m, column + n);
    if constexpr (N_RANKS == 1) {
        __syncthreads();
    } else {
        __syncwarp();
        cluster_sync();
    }
    constexpr int STEP = AT_ONCE * N_RANKS;
    for (int first = 0; first < rows; first += STEP, m += STEP) {  // warps stay together
        Four v = {};
        if (m < rows) {
            Four total = {}, following = {};
            if (KIND == PLAIN_OUT && m + STEP < rows) following = y.residuals(m + STEP, column + n);
#pragma unroll
            for (int r = 0; r < N_RANKS; r++) {
                u32 from = sums + 4 * (m * PITCH + n);
                if constexpr (N_RANKS > 1) from = cluster_address(from, r);
                total = {y.sum(total.a, load_sums<N_RANKS>(from)),
                         y.sum(total.b, load_sums<N_RANKS>(from + 32))};
            }
            // the loads end here, whether or not there is an output: their blocks may leave next
            asm volatile("" : "+f"(total.a.x), "+f"(total.a.y), "+f"(total.b.x), "+f"(total.b.y));
            if (scales) {
                float by = scales[m];
                total = scaled(total, {{by, by}, {by, by}});
            }
            v = y.write<KIND>(m, column + n, total, factors, added);
            added.residual = following;
        }
        if (prepares)
            prepare_next<UNIT>(y, m, column + n, m < rows && column + n < y.stride, v, norm);
    }
    if constexpr (N_RANKS > 1) {
        __syncwarp();
        cluster_leave();  // a block stays while others read from it
    }
}
