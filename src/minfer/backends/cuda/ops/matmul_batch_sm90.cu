// y = W x for 17 to 64 rows of x on Hopper: weights expand into shared memory, once for all rows.
//
// What: as `matmul_batch.cu`.
// Layouts: W blocks of `lib/quant.cuh`, up to three weights side by side; x chunked halves
//   (`lib/act.cuh`) of `columns` rows, a multiple of 8; out f32 [rows][stride].
// Who: a block has TILE_N packed rows of W (some times over) and, of K, the part of its rank in a
//   cluster of RANKS. One warp fetches W, 256 of K at a time, into a ring; WARPS warps expand it
//   into slots of 128 of K, each of them a row tile or, where there are few, half of its K; one
//   more fetches x. A warpgroup multiplies 64 x TILE_N: rows of x that are not there are whatever
//   lies behind, and their sums are dropped. The blocks of a cluster add their sums through each
//   other's shared memory.
//   Who expands issues no copies: a fence would wait for them. The fence that lets the products see
//   what was written is that of the warpgroup, which has the least in flight.
// Floor: bytes of W over memory bandwidth; shared memory is near: 5 cycles a row and 128 of K
//   (write and read of halves, the ring), where memory takes 4 for q4_K.
// Limits: sm_90a; K a multiple of 8; with RANKS, a block has one tile.
// Numerics: f32 sums over ascending k of a rank's part, ranks in order, whatever rows there are.
// Versions: 1 (2026-11): gate and up of a 7B layer, q4_K, at 16 (where `matmul_batch` is faster)
//   and 64 rows 55 / 57 us: warps that expand waited for their own copies at each fence, warps
//   that multiply for x and, a third of their time, for exact quotients at the end. 2: fences,
//   copies and the end moved: 43 / 49 us. Without products 31 / 37, without expansion 33 / 37,
//   without both 24 / 31.
#include "lib/cluster_sum.cuh"
#include "lib/segments.cuh"
#include "lib/wgmma.cuh"

#ifndef WARPS
#define TILES 9
#define WARPS 9
#define RING 2
#define STAGES 2
#define X_KB 64
#define RANKS 4
#define EPILOGUE 0
#endif

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
constexpr int TILE_N = 16 * TILES;      // packed rows
constexpr int CHUNKS = 2 * TILES / WARPS;  // of a slot that a warp expands: a tile has two
constexpr int GROUP = 128;              // threads of a warpgroup: the first one multiplies
constexpr int THREADS = GROUP + (WARPS + 2) * WARP;
constexpr int W_BYTES = TILE_N * 256;   // of a slot: two chunks
constexpr int RING_BYTES = TILES * MAX_PIECE;
constexpr int MAX_X = 16;               // slots of x
constexpr int PITCH = TILE_N + 8;       // floats of a row of sums in shared memory
constexpr int PENDING = STAGES - 2;     // products in flight while the next slot is awaited
static_assert(X_KB * 1024 + STAGES * W_BYTES >= 64 * PITCH * 4, "sums fit where operands were");
static_assert(CHUNKS * WARPS == 2 * TILES && CHUNKS <= 2 && STAGES <= 3);

// Expands a piece of a tile, one or two strips, into the next slots: the first chunk and the
// second, or one of them.
struct Expand {
    const u8* piece;
    int n_strips;
    bool first, second;
    u32 to;  // shared address of the lane's row and vector in slot 0
    Slots<STAGES>& slots;
    int lane;

    template <class F>
    DEVICE void run() const {
        Strip<F> next = strip_at<F>(piece, 0, lane);
#pragma unroll
        for (int s = 0; s < 2; s++) {
            if (s == n_strips) return;
            Strip<F> from = next;
            if (s == 0 && n_strips == 2) next = strip_at<F>(piece, 1, lane);
            slots.wait_empty();
            u32 at = to + slots.at * W_BYTES;
            if (first) {
                quarter<0>(from, at);
                quarter<1>(from, at);
            }
            if (second) {
                quarter<2>(from, at);
                quarter<3>(from, at);
            }
            slots.filled(lane);
        }
    }

    template <int Q, class F>
    DEVICE void quarter(const Strip<F>& from, u32 at) const {
        u32 w[2][4];
        from.template expand<Q>(w);
        at = (at ^ (Q % 2 * 16)) + Q / 2 * (TILE_N * 128);
        store_shared16(at, w[0]);
        store_shared16(at + 1024, w[1]);
    }
};

KERNEL __launch_bounds__(THREADS, 1)
matmul_batch_sm90(const u8* w0, const u8* w1, const u8* w2, const float* factor, const u8* x,
                  const float* bias, const float* residual, float* out, int k, int tiles0,
                  int tiles1, int tiles2, int stride, int rows, int columns) {
    extern __shared__ __align__(1024) u8 shared[];
    __shared__ u64 full[STAGES], empty[STAGES], fetched[RING], drained[RING];
    __shared__ u64 x_there[MAX_X], x_used[MAX_X];
    u8* xs = align_shared(shared);
    u8* ws = xs + X_KB * 1024;
    u8* ring = ws + STAGES * W_BYTES;
    int x_bytes = columns * 256, n_x = min(MAX_X, X_KB * 1024 / x_bytes);

    int warp = __shfl_sync(FULL_MASK, threadIdx.x / WARP, 0);  // known to be the same in a warp
    int lane = threadIdx.x % WARP, g = lane / 4, t = lane % 4;
    pdl_launch();
    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; i++) {
            barrier_init(full + i, WARPS);
            barrier_init(empty + i, 1);
        }
        for (int i = 0; i < RING; i++) {
            barrier_init(fetched + i, 1);
            barrier_init(drained + i, WARPS);
        }
        for (int i = 0; i < MAX_X; i++) {
            barrier_init(x_there + i, 1);
            barrier_init(x_used + i, 1);
        }
        barrier_init_fence();
    }
    __syncthreads();

    int first1 = tiles0, first2 = tiles0 + tiles1, n_tiles = first2 + tiles2;
    int n_strips = (k + 127) / 128, n_pieces = (k + 255) / 256;
    int rank = blockIdx.x % RANKS;
    int first_piece = rank * n_pieces / RANKS, end_piece = (rank + 1) * n_pieces / RANKS;
    int first_strip = 2 * first_piece, end_strip = min(2 * end_piece, n_strips);
    int first = blockIdx.x / RANKS, step = gridDim.x / RANKS;  // in columns of blocks
    int end = (n_tiles + TILES - 1) / TILES;

    if (warp < GROUP / WARP) {
        float d[TILE_N / 2];
        Output y = {factor, bias, residual, out, stride};
        pdl_wait();
        u64 x_operand = operand(shared_address(xs)), w_operand = operand(shared_address(ws));
        int at = 0, x_at = 0;
        u32 parity = 0, x_parity = 0;
#pragma unroll 1
        for (int column = first; column < end; column += step) {
            int done = at, x_done = x_at;  // slots of the oldest product in flight
            auto release = [&] {  // a product of the warpgroup ends for all of its warps at once
                if (threadIdx.x == 0) {
                    barrier_arrive(empty + done);
                    barrier_arrive(x_used + x_done);
                }
                if (++done == STAGES) done = 0;
                if (++x_done == n_x) x_done = 0;
            };
#pragma unroll 1
            for (int s = first_strip; s < end_strip; s++) {
                barrier_wait(x_there + x_at, x_parity);
                barrier_wait(full + at, parity);
                publish_shared();
                u64 a = operand_at(x_operand, x_at * x_bytes);
                u64 b = operand_at(w_operand, at * W_BYTES);
                wgmma_fence();
#pragma unroll
                for (int c = 0; c < 2; c++)
#pragma unroll
                    for (int i = 0; i < 4; i++)
                        Wgmma<TILE_N>::run(d, operand_at(a, c * columns * 128 + i * 32),
                                           operand_at(b, c * TILE_N * 128 + i * 32),
                                           s - first_strip + c + i != 0);
                wgmma_commit();
                wgmma_wait<PENDING>();
                if (s - first_strip >= PENDING) release();
                if (++at == STAGES) at = 0, parity ^= 1;
                if (++x_at == n_x) x_at = 0, x_parity ^= 1;
            }
            wgmma_wait<0>();
            settle_sums(d);
            if (PENDING) release();

            int m = warp * 16 + g;
            if (column + step < end) {  // the last ones are the work of all
                constexpr int at_once = TILES > 9 ? 1 : EPILOGUE == PLAIN_OUT ? 2 : 4;
                write_sums<EPILOGUE, at_once>(y, d, m, column * TILE_N + t * 2, rows);
            } else {
                sync_some<GROUP>(1);  // no warp still multiplies what sums replace
#pragma unroll
                for (int r = 0; r < 2; r++) {
                    float* to = (float*)xs + (m + r * 8) * PITCH + t * 2;
#pragma unroll
                    for (int j = 0; j < TILE_N / 8 && m + r * 8 < rows; j++)
                        *(float2*)(to + j * 8) = {d[j * 4 + r * 2], d[j * 4 + r * 2 + 1]};
                }
            }
        }
    } else if (warp == GROUP / WARP + WARPS + 1) {
        pdl_wait();
        int at = 0;
        u32 parity = 1;
        for (int column = first; column < end; column += step) {
            for (int s = first_strip; s < end_strip; s++) {
                barrier_wait(x_used + at, parity);
                warp_copy(xs + at * x_bytes, x + (u64)s * x_bytes, x_bytes, x_there + at, lane);
                if (++at == n_x) at = 0, parity ^= 1;
            }
        }
    } else if (warp == GROUP / WARP + WARPS) {
        int at = 0;
        u32 parity = 1;
        for (int column = first; column < end; column += step) {
            int tile = column * TILES + lane;
            bool real = lane < TILES && tile < n_tiles;
            Segment from = segment_of(tile, k, w0, w1, w2, first1, first2);
            for (int p = first_piece; p < end_piece; p++) {
                u32 bytes = 0;
                const u8* piece = real ? from.at(tile, p, bytes) : nullptr;
                u32 all = __reduce_add_sync(FULL_MASK, bytes);
                barrier_wait(drained + at, parity);
                if (lane == 0) barrier_expect(fetched + at, all);
                __syncwarp();
                if (bytes)
                    bulk_copy_once(ring + at * RING_BYTES + lane * MAX_PIECE, piece, bytes,
                                   fetched + at);
                if (++at == RING) at = 0, parity ^= 1;
            }
        }
    } else {
        int mine = (warp - GROUP / WARP) * CHUNKS, local = mine / 2;
        u32 to = shared_address(ws) + local * 2048 + g * 128 + ((2 * t) ^ g) * 16;
        Slots<STAGES> slots{full, empty, 0, 1};
        int at = 0;
        u32 parity = 0;
#pragma unroll 1
        for (int column = first; column < end; column += step) {
            int tile = column * TILES + local;
#pragma unroll 1
            for (int p = first_piece; p < end_piece; p++) {
                barrier_wait(fetched + at, parity);
                int n = min(2, n_strips - 2 * p);
                Expand expand{ring + at * RING_BYTES + local * MAX_PIECE, n,
                              CHUNKS == 2 || mine % 2 == 0, CHUNKS == 2 || mine % 2 == 1, to, slots,
                              lane};
                if (tile < n_tiles) {
                    for_type(tile, first1, first2, expand);
                } else {
                    for (int s = 0; s < n; s++) slots.wait_empty(), slots.filled(lane);
                }
                if (lane == 0) barrier_arrive(drained + at);
                if (++at == RING) at = 0, parity ^= 1;
            }
        }
    }

    pdl_wait();
    int last = first + (end - 1 - first) / step * step;
    finish_together<RANKS, EPILOGUE, TILE_N, PITCH>(Output{factor, bias, residual, out, stride},
                                                    shared_address(xs), rank, last * TILE_N, rows);
}
#endif
