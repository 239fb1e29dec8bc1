// Outputs whose sums lie in shared memory: those of a block, or of each block of a cluster.
#include "lib/epilogue.cuh"
#include "lib/pipeline.cuh"

#if !BULK_COPIES  // no clusters: bodies for branches that are never taken
DEVICE void cluster_sync() {}
DEVICE u32 cluster_address(u32 shared, u32 rank) { return shared; }
DEVICE void cluster_leave() {}
#endif

// Adds sums [m][PITCH] for m < rows at the shared address `sums` of each of N_RANKS blocks, in
// order of rank, and writes outputs from column `column` on: every block its share of N columns.
// All threads of all blocks call it once they have written sums; one block needs no cluster.
template <int N_RANKS, int KIND, int N, int PITCH>
DEVICE void finish_together(const Output& y, u32 sums, int rank, int column, int rows) {
    static_assert(N_RANKS == 1 || BULK_COPIES, "no clusters on this card");
    if constexpr (N_RANKS == 1) {
        __syncthreads();
    } else {
        __syncwarp();
        cluster_sync();
    }
    constexpr int FOURS = N / 4;  // of a row: columns n, n + 1, n + 8, n + 9
    for (int i = rank * blockDim.x + threadIdx.x; i < rows * FOURS; i += N_RANKS * blockDim.x) {
        int m = i / FOURS, n = i % FOURS / 4 * 16 + i % 4 * 2, to = column + n;
        Four factors = y.factors<KIND>(to), total = {};
        Added added = {};
        if (KIND == PLAIN_OUT) added = y.added(m, to);
#pragma unroll
        for (int r = 0; r < N_RANKS; r++) {
            u32 from = sums + 4 * (m * PITCH + n);
            if constexpr (N_RANKS > 1) from = cluster_address(from, r);
            total = {y.sum(total.a, load_sums<N_RANKS>(from)),
                     y.sum(total.b, load_sums<N_RANKS>(from + 32))};
        }
        // the loads end here, whether or not there is an output: their blocks may leave after us
        asm volatile("" : "+f"(total.a.x), "+f"(total.a.y), "+f"(total.b.x), "+f"(total.b.y));
        y.write<KIND>(m, to, total, factors, added);
    }
    if constexpr (N_RANKS > 1) {
        __syncwarp();
        cluster_leave();  // a block stays while others read from it
    }
}
