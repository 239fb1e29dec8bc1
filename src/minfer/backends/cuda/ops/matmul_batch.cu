// y = W x for some rows of x at a time, 16 at most on Hopper, 64 elsewhere: weights expand in
// registers once, for all of them.
//
// What: as `matmul_vec.cu`. RANKS blocks share the K of their tiles. On Hopper they form a CLUSTER
//   and add their sums through each other's shared memory; elsewhere the sums go to `partial`, and
//   `matmul_batch_finish` adds them.
// Layouts: W as there; x chunked halves (`lib/act.cuh`) of COLUMNS rows; out f32 [rows][stride], or
//   of a gated product that one product alone reads, that product's x: chunked halves of
//   OUT_COLUMNS rows, in the order of `wgmma_weights.cuh` if OUT_ORDERED (`lib/act.cuh`); of other
//   products, where OUT_COLUMNS is not 0, also `next`, for a norm and the product after it, and if
//   NORMED x is such memory (`lib/norm_between.cuh`);
//   partial f32 [block][COLUMNS][n_tiles * 16].
// Who: a block is WARPS x TILES row tiles by its share of K, and each warp TILES of its tiles by
//   all COLUMNS rows of x. A warp streams its weights through a ring of its own; one more warp
//   streams x through a ring that all share.
// Floor: bytes of W over memory bandwidth; above ~40 rows the rate of mma.sync.
// Limits: K a multiple of 8; TILES 2 needs an even number of tiles in every weight but the last.
// Numerics: f32 sums over ascending k of a block's share, blocks in order. RANKS is a function of
//   the weights' shapes and the card, so a row has the same bits whatever rows are beside it.
// Versions: 1 (2026-11) sums of parts of K by a second launch: a step of 16 rows of a 7B took 2.85
//   ms. 2: clusters: 2.40 ms. 3: of a ring one slot before the wait, norms shared: 2.11 to 2.01 ms.
#include "lib/cluster_sum.cuh"
#include "lib/mma.cuh"
#include "lib/segments.cuh"

#ifndef COLUMNS
#define COLUMNS 64
#define WARPS 7
#define TILES 2
#define STAGES 3
#define X_STAGES 2
#define RANKS 1
#define CLUSTER 0
#define EPILOGUE 0
#define OUT_COLUMNS 0
#define OUT_ORDERED 0
#define NORMED 0
#endif

constexpr int NT = COLUMNS / 8;
constexpr int THREADS = (WARPS + 1) * WARP;
constexpr int X_BYTES = COLUMNS * 512;      // a piece of x
constexpr int TILE_N = 16 * TILES * WARPS;  // packed rows of a block
constexpr int PITCH = TILE_N + 8;           // floats of a row of sums in shared memory
constexpr int UNIT = 16;                    // outputs whose squares are one sum for the norm after
using Ring = WarpRing<STAGES, TILES * MAX_PIECE>;
constexpr bool APART = RANKS > 1 && !CLUSTER;  // sums go to memory
static_assert(APART || X_STAGES * X_BYTES + WARPS * Ring::BYTES >= COLUMNS * PITCH * 4,
              "sums fit where operands were");

// Two products: 8 weights of each of a lane's two rows (`Strip::expand<Q>`) with vector Q of a
// lane's share of 8 columns of activations (`act.cuh`).
DEVICE void multiply(float (&acc)[4], const u32 (&w)[2][4], uint4 x) {
    mma_f16(acc, w[0][0], w[1][0], w[0][1], w[1][1], x.x, x.y);
    mma_f16(acc, w[0][2], w[1][2], w[0][3], w[1][3], x.z, x.w);
}

// Adds the products of a piece, one or two strips, to the sums of a warp's tiles.
struct Multiply {
    const u8* slot;
    u32 x;  // shared address of the piece, at the lane's row and vector
    int n_strips;
    float (&acc)[TILES][NT][4];
    int lane;

    template <class F>
    DEVICE void run() const {
#pragma unroll 1
        for (int s = 0; s < n_strips; s++) {
            quarter<F, 0>(s);
            quarter<F, 1>(s);
            quarter<F, 2>(s);
            quarter<F, 3>(s);
        }
    }

    template <class F, int Q>
    DEVICE void quarter(int s) const {
        u32 w[TILES][2][4];
#pragma unroll
        for (int i = 0; i < TILES; i++)
            strip_at<F>(slot + i * MAX_PIECE, s, lane).template expand<Q>(w[i]);
        u32 at = (x + (2 * s + Q / 2) * COLUMNS * 128) ^ (Q % 2 * 16);
        uint4 next = load_shared16(at);
#pragma unroll
        for (int n = 0; n < NT; n++) {
            uint4 v = next;
            if (n + 1 < NT) next = load_shared16(at + (n + 1) * 1024);
#pragma unroll
            for (int i = 0; i < TILES; i++) multiply(acc[i][n], w[i], v);
        }
    }
};

KERNEL __launch_bounds__(THREADS, 1)
matmul_batch(const u8* w0, const u8* w1, const u8* w2, const float* factor, const u8* x,
             const float* bias, const float* residual, float* out, const float* norm, u8* next,
             float* partial, int k, int tiles0, int tiles1, int tiles2, int stride, int rows,
             float eps) {
    extern __shared__ __align__(1024) u8 shared[];
    u8* xs = align_shared(shared);
    u8* rings = xs + X_STAGES * X_BYTES;
    u64* barriers = (u64*)(rings + WARPS * Ring::BYTES);
    u64* full = barriers + WARPS * STAGES;
    float* scales = NORMED ? (float*)(full + X_STAGES) : nullptr;

    int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, g = lane / 4, t = lane % 4;
    pdl_launch();
    if (elect()) {
        if (warp < WARPS) {
            for (int i = 0; i < STAGES; i++) barrier_init(barriers + warp * STAGES + i, 1);
        } else {
            for (int i = 0; i < X_STAGES; i++) barrier_init(full + i, COPY_ARRIVALS);
        }
#if BULK_COPIES
        barrier_init_fence();
#endif
    }
    __syncthreads();

    int n_strips = (k + 127) / 128, n_pieces = (k + 255) / 256;
    int first1 = tiles0, first2 = tiles0 + tiles1, n_tiles = first2 + tiles2;
    int rank = blockIdx.x % RANKS, block = blockIdx.x / RANKS;
    int first_piece = rank * n_pieces / RANKS, end_piece = (rank + 1) * n_pieces / RANKS;
    int tile = (block * WARPS + warp) * TILES;
    bool idle = tile >= n_tiles;  // such a warp only frees slots of x
    float acc[TILES][NT][4] = {};

    static_assert(X_STAGES < 16, "barrier 0 has other uses");
    if (warp == WARPS) {
        pdl_wait();
        int at = 0;
        for (int p = first_piece; p < end_piece; p++) {
            // for a slot that was filled before; as often as all others arrive
            if (p >= first_piece + X_STAGES) sync_some<THREADS>(1 + at);
            u32 bytes = min(2, n_strips - p * 2) * COLUMNS * 256;
            warp_copy(xs + at * X_BYTES, x + (u64)p * X_BYTES, bytes, full + at);
            if (++at == X_STAGES) at = 0;
        }
    } else {
        Ring ring(rings + warp * Ring::BYTES, barriers + warp * STAGES);
        auto fetch = [&](int slot, int piece) {
            const u8* rows[TILES] = {};
            u32 bytes[TILES] = {};
            if (piece < end_piece && !idle) {
                Segment from = segment_of(tile, k, w0, w1, w2, first1, first2);
#pragma unroll
                for (int i = 0; i < TILES; i++)
                    rows[i] = from.at(min(tile + i, n_tiles - 1), piece, bytes[i]);
            }
            ring.issue(slot, rows, bytes, MAX_PIECE);
        };
        // what is loaded after copies comes after them, so of these the first alone is asked for
        // before x and the sums of its squares
        fetch(0, first_piece);
        pdl_wait();
        RowScales<UNIT, COLUMNS, WARPS * WARP> row_scales;
        if (NORMED) row_scales.load(x, k);
        for (int i = 1; i < STAGES; i++) fetch(i, first_piece + i);
        if (NORMED) row_scales.store(scales, k, eps);

        u32 x_lane = shared_address(xs) + g * 128 + ((2 * t) ^ g) * 16;
        int at = 0;
        u32 parity = 0;
#pragma unroll 1
        for (int piece = first_piece; piece < end_piece; piece++) {
            barrier_wait(full + at, parity);
            if (!idle)
                for_type(tile, first1, first2,
                         Multiply{ring.wait(), x_lane + at * X_BYTES, min(2, n_strips - piece * 2),
                                  acc, lane});
            if (piece + X_STAGES < end_piece) arrive_some<THREADS>(1 + at);  // the slot is free
            if (!idle) {
                __syncwarp();
                fetch(ring.at, piece + STAGES);
                ring.advance();
            }
            if (++at == X_STAGES) at = 0, parity ^= 1;
        }
    }

    if (!APART) __syncthreads();  // operands are used up, and sums take their place
    float* sums = (float*)xs;
    int pitch = APART ? n_tiles * 16 : PITCH, n0 = warp * TILES * 16;
    if (APART) sums = partial + (u64)rank * COLUMNS * pitch + block * TILE_N;
    if (warp < WARPS && !idle) {
#pragma unroll
        for (int i = 0; i < TILES; i++) {
            if (tile + i >= n_tiles) continue;
#pragma unroll
            for (int n = 0; n < NT; n++)
#pragma unroll
                for (int j = 0; j < 2; j++) {
                    float* to = sums + (n * 8 + 2 * t + j) * (u64)pitch + n0 + i * 16 + g;
                    to[0] = acc[i][n][j];
                    to[8] = acc[i][n][2 + j];
                }
        }
    }
    if constexpr (!APART)
        finish_together<RANKS, EPILOGUE, TILE_N, PITCH, THREADS, UNIT>(
            Output{factor, bias, residual, out, stride, OUT_COLUMNS, OUT_ORDERED, norm, next},
            shared_address(xs), scales, rank, block * TILE_N, rows);
}

KERNEL __launch_bounds__(256)
matmul_batch_finish(const float* partial, const float* factor, const float* bias,
                    const float* residual, float* out, int n_rows, int stride) {
    int index = blockIdx.x * 256 + threadIdx.x, m = blockIdx.y;
    int column = index / 8 * 16 + index % 8;  // and the one 8 further
    pdl_launch();
    pdl_wait();
    if (column >= n_rows) return;
    Output y = {factor, bias, residual, out, stride, OUT_COLUMNS, OUT_ORDERED};
    Ends ends = y.ends(EPILOGUE, m, column);
    float a = 0.0f, b = 0.0f;
#pragma unroll
    for (int r = 0; r < RANKS; r++) {
        const float* from = partial + ((u64)r * COLUMNS + m) * n_rows + column;
        a += from[0];
        b += from[8];
    }
    y.finish(EPILOGUE, m, column, a, b, ends);
}
