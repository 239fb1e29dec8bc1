// y = W x for 8 to 64 rows of x at a time: weights expand in registers once, for all of them.
//
// What: as `matmul_vec.cu`; then for SPLIT the sums of parts (1) or of sections
//   (2) of K go to `partial`, and `matmul_batch_finish` adds them and writes the outputs.
// Layouts: W as there; x chunked halves (`lib/act.cuh`) of COLUMNS rows; out f32 [rows][stride];
//   partial f32 [part or section][COLUMNS][n_tiles * 16].
// Who: a block is WARPS x TILES row tiles by a range of parts (all without SPLIT), and each warp
//   TILES of its tiles by all COLUMNS rows of x. A warp streams its weights through a ring of its
//   own; one more warp streams x through a ring that all share. Column g of a product is row (g / 2
//   + 4 (g & 1)) of its eight: so neighbouring lanes read x without bank conflicts.
// Floor: bytes of W over memory bandwidth up to ~40 rows, then the rate of mma.sync.
// Limits: K a multiple of 8; TILES 2 needs an even number of tiles in every weight but the last.
// Numerics: `lib/order.cuh`.
// Versions: 1 (2026-11).
#include "lib/epilogue.cuh"
#include "lib/mma.cuh"
#include "lib/order.cuh"
#include "lib/pipeline.cuh"
#include "lib/segments.cuh"

#ifndef COLUMNS
#define COLUMNS 64
#define PART 1
#define SECTION 16
#define WARPS 8
#define TILES 2
#define STAGES 3
#define X_STAGES 2
#define SPLIT 0
#define EPILOGUE 0
#endif

constexpr int NT = COLUMNS / 8;
constexpr int THREADS = (WARPS + 1) * WARP;
constexpr int X_BYTES = COLUMNS * 512;  // a piece of x
using Ring = WarpRing<STAGES, TILES * MAX_PIECE>;

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
        u32 at = (x + (2 * s + Q / 2) * COLUMNS * 128) ^ (Q % 2 * 64);
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
             const float* bias, const float* residual, float* out, float* partial, int k,
             int tiles0,
             int tiles1, int tiles2, int stride, int rows, int parts_a_block) {
    extern __shared__ __align__(1024) u8 shared[];
    int n_strips = (k + 127) / 128, n_pieces = (k + 255) / 256;
    int n_parts = (n_pieces + PART - 1) / PART;
    int first1 = tiles0, first2 = tiles0 + tiles1, n_tiles = first2 + tiles2;
    int first_part = blockIdx.y * parts_a_block;
    int end_part = min(first_part + parts_a_block, n_parts);
    int first_piece = first_part * PART, end_piece = min(end_part * PART, n_pieces);

    u8* xs = (u8*)(((u64)shared + 1023) & ~(u64)1023);
    u8* rings = xs + X_STAGES * X_BYTES;
    float* sums = (float*)(rings + WARPS * Ring::BYTES);
    u64* barriers = (u64*)(sums + (SPLIT == 1 ? 0 : WARPS * TILES * NT * 4 * WARP));
    u64* full = barriers + WARPS * STAGES;
    u64* empty = full + X_STAGES;

    int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, g = lane / 4, t = lane % 4;
    pdl_launch();
    if (lane == 0) {
        if (warp < WARPS) {
            for (int i = 0; i < STAGES; i++) barrier_init(barriers + warp * STAGES + i, 1);
        } else {
            for (int i = 0; i < X_STAGES; i++) {
                barrier_init(full + i, COPY_ARRIVALS);
                barrier_init(empty + i, WARPS);
            }
        }
#if __CUDA_ARCH__ >= 900
        barrier_init_fence();
#endif
    }
    __syncthreads();

    if (warp == WARPS) {
        pdl_wait();
        int at = 0;
        u32 parity = 1;
        for (int p = first_piece; p < end_piece; p++) {
            barrier_wait(empty + at, parity);
            u32 bytes = min(2, n_strips - p * 2) * COLUMNS * 256;
            warp_copy(xs + at * X_BYTES, x + (u64)p * X_BYTES, bytes, full + at, lane);
            if (++at == X_STAGES) at = 0, parity ^= 1;
        }
        return;
    }

    int tile = (blockIdx.x * WARPS + warp) * TILES;
    bool idle = tile >= n_tiles;  // such a warp only frees slots of x
    Ring ring(rings + warp * Ring::BYTES, barriers + warp * STAGES, lane);
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
    for (int i = 0; i < STAGES; i++) fetch(i, first_piece + i);
    pdl_wait();

    int row = g / 2 + 4 * (g & 1);  // of x, for column g
    u32 x_lane = shared_address(xs) + row * 128 + ((t ^ row) * 16);
    float* sum = sums + warp * (TILES * NT * 4 * WARP) + lane;  // [TILES][NT][4][lane]
    int at = 0;
    u32 parity = 0;
    Output y = {factor, bias, residual, out, stride};
#pragma unroll 1
    for (int part = first_part; part < end_part; part++) {
        float acc[TILES][NT][4] = {};
        int end = min((part + 1) * PART, n_pieces);
#pragma unroll 1
        for (int piece = part * PART; piece < end; piece++) {
            barrier_wait(full + at, parity);
            if (!idle)
                for_type(tile, first1, first2,
                         Multiply{ring.wait(), x_lane + at * X_BYTES, min(2, n_strips - piece * 2),
                                  acc, lane});
            __syncwarp();
            if (lane == 0) barrier_arrive(empty + at);
            if (!idle) {
                fetch(ring.at, piece + STAGES);
                ring.advance();
            }
            if (++at == X_STAGES) at = 0, parity ^= 1;
        }
        if (idle) continue;

        // sums of a section wait in shared memory: registers hold one set of accumulators
        bool first = SPLIT == 1 || part % SECTION == 0, last = SPLIT == 1 || part + 1 == end_part;
#pragma unroll
        for (int i = 0; i < TILES; i++) {
            int column = (tile + i) * 16 + g;
#pragma unroll
            for (int n = 0; n < NT; n++) {
#pragma unroll
                for (int j = 0; j < 4; j++) {
                    float* mine = sum + ((i * NT + n) * 4 + j) * WARP;
                    if (!first) acc[i][n][j] = *mine + acc[i][n][j];
                    if (!last) *mine = acc[i][n][j];
                }
                if (!last || tile + i >= n_tiles) continue;
#pragma unroll
                for (int j = 0; j < 2; j++) {
                    int m = n * 8 + t + 4 * j;
                    float a = acc[i][n][j], b = acc[i][n][2 + j];
                    if constexpr (SPLIT) {
                        int unit = SPLIT == 1 ? part : part / SECTION;
                        float* to = partial + ((u64)unit * COLUMNS + m) * n_tiles * 16 + column;
                        to[0] = a;
                        to[8] = b;
                    } else if (m < rows) {
                        y.finish(EPILOGUE, m, column, 0.0f + a, 0.0f + b);
                    }
                }
            }
        }
    }
}

KERNEL __launch_bounds__(256)
matmul_batch_finish(const float* partial, const float* factor, const float* bias,
                    const float* residual, float* out, int n_units, int n_rows, int stride) {
    int index = blockIdx.x * 256 + threadIdx.x, m = blockIdx.y;
    int column = index / 8 * 16 + index % 8;  // and the one 8 further
    pdl_launch();
    pdl_wait();
    if (column >= n_rows) return;
    Sum a(SPLIT == 1 ? SECTION : 1), b(SPLIT == 1 ? SECTION : 1);
#pragma unroll 8
    for (int u = 0; u < n_units; u++) {
        const float* from = partial + ((u64)u * COLUMNS + m) * n_rows + column;
        a.add(from[0]);
        b.add(from[8]);
    }
    Output y = {factor, bias, residual, out, stride};
    y.finish(EPILOGUE, m, column, a.total(), b.total());
}
