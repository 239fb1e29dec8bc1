// y = W x for 17 to 64 rows of x on Hopper: weights expand in registers, as operands of warpgroup
// products.
//
// What: as `matmul_batch.cu`.
// Layouts: W blocks of `lib/quant.cuh`, up to three weights side by side; x chunked halves of
//   COLUMNS rows in this kernel's order (`lib/act.cuh`); out f32 [rows][stride] or halves, NORMED
//   and `next`, as there.
// Who: a block is GROUPS warpgroups. A warp has one row tile, by its block's share of K, and
//   streams it through a ring of its own; the four tiles of a warpgroup are the 64 rows of its
//   products. x is their other operand, in a ring that all share, a strip of 128 of K a slot: the
//   warpgroup that is done with one last fills it again. A lane expands just what it has to bring:
//   64 of K into one of two sets of registers while the products of the other set run. The RANKS
//   blocks of a cluster share the K of their tiles and add their sums through each other's shared
//   memory.
// Floor: bytes of W over memory bandwidth. In fact the instructions and the products of a block's
//   warps add up.
// Limits: sm_90a; K a multiple of 8.
// Numerics: f32 sums over ascending k of a block's share, blocks in order. RANKS is a function of
//   the weights' shapes and the card, so a row has the same bits whatever rows are beside it.
// Versions (2026-11), by gate and up of a 7B layer, q4_K, at 32 / 64 rows, with `matmul_act`: 1, 2:
//   weights expanded into shared memory, 64 columns always: 46.5 / 47 us. 3: this: 35.0 / 45.4.
#include "lib/cluster_sum.cuh"
#include "lib/wgmma_weights.cuh"

#ifndef COLUMNS
#define COLUMNS 64
#define GROUPS 5
#define STAGES 3
#define X_STAGES 4
#define RANKS 1
#define EPILOGUE 0
#define OUT_COLUMNS 0
#define OUT_ORDERED 0
#define NORMED 0
#endif

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
constexpr int WARPS = 4 * GROUPS;
constexpr int THREADS = WARPS * WARP;
constexpr int X_BYTES = COLUMNS * 256;  // a strip of x
constexpr int TILE_N = 16 * WARPS;      // packed rows of a block
constexpr int PITCH = TILE_N + 4;       // floats of a row of sums in shared memory
constexpr int UNIT = 64;                // outputs whose squares are one sum for the norm after
using Ring = WarpRing<STAGES, MAX_PIECE>;
static_assert(X_STAGES * X_BYTES + WARPS * Ring::BYTES >= COLUMNS * PITCH * 4,
              "sums fit where operands were");

// Counts a warpgroup that is done with a slot of x; whether it was the last of them.
DEVICE bool last_use(u32* uses) {
    u32 before;
    asm volatile("atom.add.acq_rel.cta.shared.u32 %0, [%1], 1;"
                 : "=r"(before)
                 : "r"(shared_address(uses))
                 : "memory");
    return before % GROUPS == GROUPS - 1;
}

KERNEL __launch_bounds__(THREADS, 1)
matmul_batch_sm90(const u8* w0, const u8* w1, const u8* w2, const float* factor, const u8* x,
                  const float* bias, const float* residual, float* out, const float* norm,
                  u8* next, int k, int tiles0, int tiles1, int tiles2, int stride, int rows,
                  float eps) {
    extern __shared__ __align__(1024) u8 shared[];
    u8* xs = align_shared(shared);
    u8* rings = xs + X_STAGES * X_BYTES;
    u64* barriers = (u64*)(rings + WARPS * Ring::BYTES);
    u64* full = barriers + WARPS * STAGES;
    u32* uses = (u32*)(full + X_STAGES);
    float* scales = NORMED ? (float*)(uses + X_STAGES) : nullptr;

    int warp = __shfl_sync(FULL_MASK, threadIdx.x / WARP, 0);  // known to be the same in a warp
    int lane = threadIdx.x % WARP;
    pdl_launch();
    if (elect()) {
        for (int i = 0; i < STAGES; i++) barrier_init(barriers + warp * STAGES + i, 1);
        for (int i = warp; i < X_STAGES; i += WARPS) {
            barrier_init(full + i, 1);
            uses[i] = 0;
        }
        barrier_init_fence();
    }
    __syncthreads();

    int n_strips = (k + 127) / 128, n_pieces = (k + 255) / 256;
    int first1 = tiles0, first2 = tiles0 + tiles1, n_tiles = first2 + tiles2;
    int rank = blockIdx.x % RANKS, block = blockIdx.x / RANKS;
    int first_piece = rank * n_pieces / RANKS, end_piece = (rank + 1) * n_pieces / RANKS;
    int first_strip = 2 * first_piece, end_strip = min(2 * end_piece, n_strips);

    int tile = block * WARPS + warp;
    bool idle = tile >= n_tiles;  // it multiplies zeros, for its warpgroup to be whole
    Ring ring(rings + warp * Ring::BYTES, barriers + warp * STAGES);
    auto fetch = [&](int slot, int piece) {
        const u8* from[1] = {};
        u32 bytes[1] = {};
        if (piece < end_piece)
            from[0] = segment_of(tile, k, w0, w1, w2, first1, first2).at(tile, piece, bytes[0]);
        ring.issue(slot, from, bytes, MAX_PIECE);
    };
    auto fetch_x = [&](int slot, int s) {  // by one thread
        if (s < end_strip)
            fill(xs + slot * X_BYTES, x + (u64)s * X_BYTES, X_BYTES, full + slot);
    };
    // what is loaded after copies comes after them, so of these the first alone is asked for before
    // x and the sums of its squares
    if (!idle) fetch(0, first_piece);
    pdl_wait();
    if (warp == 0 && elect())
        for (int i = 0; i < X_STAGES; i++) fetch_x(i, first_strip + i);
    RowScales<UNIT, COLUMNS, THREADS> row_scales;
    if (NORMED) row_scales.load(x, k);
    for (int i = 1; i < STAGES && !idle; i++) fetch(i, first_piece + i);
    if (NORMED) row_scales.store(scales, k, eps);

    float d[COLUMNS / 2];
    u32 a[2][4][4] = {};
    StripWords words = {};
    u64 x_operand = operand(shared_address(xs));
    int at = 0, before = X_STAGES - 1;
    u32 parity = 0;
    const u8* piece = nullptr;
#pragma unroll 1
    for (int s = first_strip; s < end_strip; s++) {
        if (!idle) {
            if (s % 2 == 0) piece = ring.wait();
            for_type(tile, first1, first2, ReadStrip{piece, s % 2, lane, words});
        }
        u64 b = operand_at(x_operand, at * X_BYTES);
        wgmma_wait<1>();  // the products of set 0 are done
        if (!idle) for_type(tile, first1, first2, ExpandHalf<0>{words, a[0]});
        barrier_wait(full + at, parity);
        wgmma_fence();
#pragma unroll
        for (int i = 0; i < 4; i++)
            WgmmaRegisters<COLUMNS>::run(d, a[0][i], operand_at(b, i * 32),
                                         s - first_strip + i != 0);
        wgmma_commit();

        wgmma_wait<1>();  // and those of set 1, the last of the strip before
        if (s > first_strip && warp % 4 == 0 && elect() && last_use(uses + before))
            fetch_x(before, s - 1 + X_STAGES);
        if (!idle) for_type(tile, first1, first2, ExpandHalf<1>{words, a[1]});
        wgmma_fence();
#pragma unroll
        for (int i = 0; i < 4; i++)
            WgmmaRegisters<COLUMNS>::run(d, a[1][i], operand_at(b, COLUMNS * 128 + i * 32), 1);
        wgmma_commit();

        if (!idle && s % 2) {
            __syncwarp();
            fetch(ring.at, s / 2 + STAGES);
            ring.advance();
        }
        before = at;
        if (++at == X_STAGES) at = 0, parity ^= 1;
    }
    wgmma_wait<0>();
    settle_sums(d);

    __syncthreads();  // operands are used up, and sums take their place
    int g = lane / 4, t = lane % 4;
#pragma unroll
    for (int n = 0; n < COLUMNS / 8; n++)
#pragma unroll
        for (int j = 0; j < 2; j++) {
            float* to = (float*)xs + (n * 8 + 2 * t + j) * PITCH + warp * 16 + g;
            to[0] = d[4 * n + j];
            to[8] = d[4 * n + 2 + j];
        }
    finish_together<RANKS, EPILOGUE, TILE_N, PITCH, THREADS, UNIT>(
        Output{factor, bias, residual, out, stride, OUT_COLUMNS, OUT_ORDERED, norm, next},
        shared_address(xs), scales, rank, block * TILE_N, rows);
}
#endif
