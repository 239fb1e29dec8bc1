// y = x W^T for the rows of prompts on Hopper: weights expand in registers, as operands of
// warpgroup products.
//
// What: as `matmul_vec.cu`.
// Layouts: W blocks of `lib/quant.cuh`, up to three weights side by side; x chunked halves of
//   padded_m rows in this kernel's order (`lib/act.cuh`); out f32 [m][stride], or, of a gated
//   product with HALVES, that product's x: chunked halves of padded_m rows in the same order.
// Who: a block a multiprocessor, tiles of 128 rows of W by COLUMNS of x in turn, those of the same
//   weights side by side. Two warpgroups have 64 rows of W each, and multiply. Each of their warps
//   streams its row tile of W through a ring of its own, and expands 64 of K into one of two sets
//   of registers while the products of the other set run. One thread more copies x, 64 of K at a
//   time, into a ring that all share.
// Floor: 2 m n k operations at ~990 TFLOP/s dense; x streams from L2.
// Limits: sm_90a; K a multiple of 8; padded_m of 8; of gated products with HALVES, outputs a
//   multiple of 128. Rows that only pad x may be anything, and are not written.
// Numerics: f32 accumulators over ascending k, in the order of x.
// Versions: 1 (2026-11): gate and up of a 7B layer, q4_K, at 512 / 2048 rows: 231 / 873 us. Weights
//   expanded by a launch of their own, both operands in shared memory: 297 / 988.
// Macros: COLUMNS (one of 128, 192, 256), STAGES of a warp's ring, X_STAGES, EPILOGUE
//   (`lib/epilogue.cuh`), HALVES (0/1), TYPE0..2.
#include "lib/epilogue.cuh"
#include "lib/pipeline.cuh"
#include "lib/wgmma_weights.cuh"

#ifndef COLUMNS
#define COLUMNS 256
#define STAGES 3
#define X_STAGES 4
#define EPILOGUE 0
#define HALVES 0
#endif

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
constexpr int WARPS = 8, CONSUMERS = WARPS * WARP;
constexpr int X_BYTES = COLUMNS * 128;  // a chunk of x
constexpr int AT_ONCE = 32;             // rows of x whose halves are put together at a time
constexpr int TOGETHER = AT_ONCE * 64;  // their bytes, of a warpgroup
using Ring = WarpRing<STAGES, MAX_PIECE>;

// The row tile of a warp of block `block` of W. The 32 outputs of a warpgroup's four gated tiles
// that become halves are 32 apart in turn, for four times eight of them to be whole vectors.
DEVICE int tile_of(int block, int warp) {
    if (!HALVES) return block * WARPS + warp;
    return block / 2 * 16 + block % 2 * 2 + warp / 4 + warp % 4 * 4;
}

// Writes a warpgroup's gated outputs as halves, four vectors of each row of x from number `vector`
// on. `buffers` is 2 * TOGETHER bytes; words of a vector lie in them as their warps do.
template <int N>
DEVICE void write_vectors(const Output& y, const float (&d)[N], u8* buffers, int barrier, int tile,
                          int vector, int first, int rows, int padded_rows) {
    int thread = threadIdx.x % 128, warp = thread / WARP, g = thread % WARP / 4, t = thread % 4;
    float gate = y.factor[tile * 16 + g], up = y.factor[tile * 16 + g + 8];
    bool odd = g & 1;
#pragma unroll
    for (int from = 0; from < N / 4; from += AT_ONCE / 8) {
        u8* buffer = buffers + from / (AT_ONCE / 8) % 2 * TOGETHER;
#pragma unroll
        for (int j = 0; j < AT_ONCE / 8; j++) {
            const float* a = d + 4 * (from + j);
            float v[2];  // of two rows of x
#pragma unroll
            for (int e = 0; e < 2; e++) v[e] = gated(EPILOGUE, a[e] * gate, a[2 + e] * up);
            // neighbours g and g + 1 trade: an even lane gets both values of the first row
            float other = __shfl_xor_sync(FULL_MASK, odd ? v[0] : v[1], 4);
            u32 word = odd ? pack_act(other, v[1]) : pack_act(v[0], other);
            int row = 8 * j + 2 * t + odd;
            *(u32*)(buffer + row * 64 + ((g / 2) ^ t) * 16 + warp * 4) = word;
        }
        sync_some<128>(barrier);
        int row = thread / 4, i = thread % 4, m = first + from * 8 + row;
        uint4 v = *(const uint4*)(buffer + row * 64 + (i ^ row / 2 % 4) * 16);
        if (m < rows)
            *(uint4*)((u8*)y.out + ordered_offset(m, padded_rows, vector / 16, vector % 16 + i)) =
                v;
    }
}

KERNEL __launch_bounds__(CONSUMERS + 128, 1)
matmul_many_sm90(const u8* w0, const u8* w1, const u8* w2, const float* factor, const u8* x,
                 const float* bias, const float* residual, float* out, const int* counts, int k,
                 int tiles0, int tiles1, int tiles2, int stride, int padded_m) {
    extern __shared__ __align__(1024) u8 shared[];
    u8* xs = align_shared(shared);
    u8* rings = xs + X_STAGES * X_BYTES;
    [[maybe_unused]] u8* buffers = rings + WARPS * Ring::BYTES;  // with HALVES: `write_vectors`
    __shared__ u64 barriers[WARPS * STAGES], full[X_STAGES], empty[X_STAGES];

    int warp = __shfl_sync(FULL_MASK, threadIdx.x / WARP, 0);  // known to be the same in a warp
    pdl_launch();
    if (threadIdx.x == 0) {
        for (int i = 0; i < WARPS * STAGES; i++) barrier_init(barriers + i, 1);
        for (int i = 0; i < X_STAGES; i++) {
            barrier_init(full + i, 1);
            barrier_init(empty + i, 2);
        }
        barrier_init_fence();
    }
    __syncthreads();

    int n_strips = (k + 127) / 128, n_pieces = (k + 255) / 256;
    int first1 = tiles0, first2 = tiles0 + tiles1, n_tiles = first2 + tiles2;
    int m = counts[1];  // rows that are real; an input of the step, which no kernel writes
    int columns = (m + COLUMNS - 1) / COLUMNS;  // tiles of x
    int n_works = columns * ((n_tiles + WARPS - 1) / WARPS);

    if (warp >= WARPS) {
        set_registers_down<40>();
        if (threadIdx.x > CONSUMERS) return;
        pdl_wait();
        int at = 0;
        u32 parity = 1;
        for (int work = blockIdx.x; work < n_works; work += gridDim.x) {
            int row = work % columns * COLUMNS;
            u32 bytes = min(COLUMNS, padded_m - row) * 128;
            for (int c = 0; c < 2 * n_strips; c++) {
                barrier_wait(empty + at, parity);
                barrier_expect(full + at, bytes);
                bulk_copy(xs + at * X_BYTES, x + ((u64)c * padded_m + row) * 128, bytes, full + at);
                if (++at == X_STAGES) at = 0, parity ^= 1;
            }
        }
        return;
    }

    set_registers_up<232>();
    int lane = threadIdx.x % WARP;
    [[maybe_unused]] int group = warp / 4;
    // a tile past the last is the last once more, and not written
    auto my_tile = [&](int work) { return min(tile_of(work / columns, warp), n_tiles - 1); };
    Ring ring(rings + warp * Ring::BYTES, barriers + warp * STAGES, lane);
    int next = blockIdx.x, next_piece = 0;  // to fetch
    auto fetch = [&](int slot) {
        const u8* from[1] = {};
        u32 bytes[1] = {};
        if (next < n_works) {
            int tile = my_tile(next);
            from[0] =
                segment_of(tile, k, w0, w1, w2, first1, first2).at(tile, next_piece, bytes[0]);
            if (++next_piece == n_pieces) next_piece = 0, next += gridDim.x;
        }
        ring.issue(slot, from, bytes, MAX_PIECE);
    };
    for (int i = 0; i < STAGES; i++) fetch(i);
    pdl_wait();

    float d[COLUMNS / 2];
    u32 a[2][4][4];
    StripWords words = {};
    u64 x_operand = operand(shared_address(xs));
    int at = 0, before = 0;
    u32 parity = 0;
    // Multiplies by a set of registers while the products of the other set still run.
    auto multiply = [&](u32(&set)[4][4], bool keep) {
        barrier_wait(full + at, parity);
        u64 b = operand_at(x_operand, at * X_BYTES);
        wgmma_fence();
#pragma unroll
        for (int i = 0; i < 4; i++)
            WgmmaRegisters<COLUMNS>::run(d, set[i], operand_at(b, i * 32), keep || i > 0);
        wgmma_commit();
        wgmma_wait<1>();  // those are done with their registers and with x
        if (keep && threadIdx.x % 128 == 0) barrier_arrive(empty + before);
        before = at;
        if (++at == X_STAGES) at = 0, parity ^= 1;
    };
    Output y = {factor, bias, residual, out, stride};
    for (int work = blockIdx.x; work < n_works; work += gridDim.x) {
        int tile = my_tile(work), row = work % columns * COLUMNS;
        const u8* piece = nullptr;
#pragma unroll 1
        for (int s = 0; s < n_strips; s++) {
            if (s % 2 == 0) piece = ring.wait();
            for_type(tile, first1, first2, ReadStrip{piece, s % 2, lane, words});
            for_type(tile, first1, first2, ExpandHalf<0>{words, a[0]});
            multiply(a[0], s > 0);
            for_type(tile, first1, first2, ExpandHalf<1>{words, a[1]});
            multiply(a[1], true);
            if (s % 2 || s == n_strips - 1) {
                __syncwarp();
                fetch(ring.at);
                ring.advance();
            }
        }
        wgmma_wait<0>();
        settle_sums(d);
        if (threadIdx.x % 128 == 0) barrier_arrive(empty + before);
#if HALVES
        write_vectors(y, d, buffers + group * 2 * TOGETHER, 1 + group, tile,
                      work / columns * 8 + group * 4, row, m, padded_m);
#else
        if (tile == tile_of(work / columns, warp))
            write_columns<EPILOGUE>(y, d, tile * 16 + lane / 4, row + lane % 4 * 2, m);
#endif
    }
}
#endif
