// y = x W^T on Hopper for the rows of prompts, and for more single rows than 64: weights expand in
// registers, as operands of warpgroup products.
//
// What: as `matmul_vec.cu`.
// Layouts: W blocks of `lib/quant.cuh`, up to three weights side by side; x chunked halves of
//   padded_m rows in this kernel's order (`lib/act.cuh`); out f32 [m][stride], or, of a gated
//   product with HALVES, that product's x: chunked halves of padded_m rows in the same order;
//   partial f32 [tile][rank][COLUMNS / 8][256 threads][4], counters u32 [tile].
// Who: a block a multiprocessor, tiles of 128 rows of W by COLUMNS of x in turn, those of the same
//   weights side by side. Two warpgroups have 64 rows of W each, and multiply. Each of their warps
//   streams its row tile of W through a ring of its own, and expands 64 of K into one of two sets
//   of registers while the products of the other set run. One thread more copies x, 64 of K at a
//   time, into a ring that all share. RANKS blocks share the K of a tile; the last of them to
//   write its sums to `partial` adds all, in order of rank.
// Floor: 2 m n k operations at ~990 TFLOP/s dense; x streams from L2.
// Limits: sm_90a; K a multiple of 8; padded_m of 8; of gated products with HALVES, outputs a
//   multiple of 128. Rows that only pad x may be anything, and are not written.
// Numerics: f32 sums over ascending k of a rank's share, in the order of x, ranks in order.
// Versions: 1 (2026-11): gate and up of a 7B layer, q4_K, at 512 / 2048 rows: 231 / 873 us. Weights
//   expanded by a launch of their own, both operands in shared memory: 297 / 988.
// Macros: COLUMNS (64, 96, 128, 192 or 256), RANKS, STAGES of a warp's ring, X_STAGES, EPILOGUE
//   (`lib/epilogue.cuh`), HALVES (0/1), TYPE0..2.
#include "lib/epilogue.cuh"
#include "lib/pipeline.cuh"
#include "lib/wgmma_weights.cuh"

#ifndef COLUMNS
#define COLUMNS 256
#define RANKS 1
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
    // the next tile begins with the first buffer, which the last of an odd number is read from
    if (2 * N / AT_ONCE % 2) sync_some<128>(barrier);
}

// Writes this rank's sums of a tile to its place in `partial`; the last rank to do so gets all
// added and true. By both computing warpgroups; `last` is in shared memory.
template <int N>
DEVICE bool add_ranks(float (&d)[N], float4* partial, u32* counter, int rank, int& last) {
    constexpr int FOURS = N / 4, BEHIND = FOURS % 8 ? 6 : 8;  // loads on their way together
    static_assert(FOURS % BEHIND == 0, "every sum is added");
    int thread = threadIdx.x;
    float4* mine = partial + rank * FOURS * CONSUMERS + thread;
#pragma unroll
    for (int i = 0; i < FOURS; i++)
        mine[i * CONSUMERS] = make_float4(d[4 * i], d[4 * i + 1], d[4 * i + 2], d[4 * i + 3]);
    sync_some<CONSUMERS>(3);
    if (thread == 0) last = arrive(counter, RANKS);
    sync_some<CONSUMERS>(3);
    if (!last) return false;
#pragma unroll
    for (int first = 0; first < FOURS; first += BEHIND) {
        float4 sum[BEHIND];
#pragma unroll 1
        for (int r = 0; r < RANKS; r++) {
            const float4* from = partial + (r * FOURS + first) * CONSUMERS + thread;
            float4 v[BEHIND];
#pragma unroll
            for (int i = 0; i < BEHIND; i++) v[i] = __ldcg(from + i * CONSUMERS);
#pragma unroll
            for (int i = 0; i < BEHIND; i++)
                sum[i] = r ? make_float4(sum[i].x + v[i].x, sum[i].y + v[i].y, sum[i].z + v[i].z,
                                         sum[i].w + v[i].w)
                           : v[i];
        }
#pragma unroll
        for (int i = 0; i < BEHIND; i++) {
            float* to = d + 4 * (first + i);
            to[0] = sum[i].x, to[1] = sum[i].y, to[2] = sum[i].z, to[3] = sum[i].w;
        }
    }
    return true;
}

KERNEL __launch_bounds__(CONSUMERS + 128, 1)
matmul_many_sm90(const u8* w0, const u8* w1, const u8* w2, const float* factor, const u8* x,
                 const float* bias, const float* residual, float* out, float4* partial,
                 u32* counters, const int* count, int k, int tiles0, int tiles1, int tiles2,
                 int stride, int padded_m) {
    extern __shared__ __align__(1024) u8 shared[];
    u8* xs = align_shared(shared);
    u8* rings = xs + X_STAGES * X_BYTES;
    [[maybe_unused]] u8* buffers = rings + WARPS * Ring::BYTES;  // with HALVES: `write_vectors`
    __shared__ u64 barriers[WARPS * STAGES], full[X_STAGES], empty[X_STAGES];
    [[maybe_unused]] __shared__ int last;

    int warp = __shfl_sync(FULL_MASK, threadIdx.x / WARP, 0);  // known to be the same in a warp
    pdl_launch();
    if (threadIdx.x == 0) {
        for (int i = 0; i < WARPS * STAGES; i++) barrier_init(barriers + i, 1);
        for (int i = 0; i < X_STAGES; i++) {
            barrier_init(full + i, 1);
            barrier_init(empty + i, 2);  // products read x, not lanes: one arrival a warpgroup
        }
        barrier_init_fence();
    }
    __syncthreads();

    int n_strips = (k + 127) / 128, n_pieces = (k + 255) / 256;
    int first1 = tiles0, first2 = tiles0 + tiles1, n_tiles = first2 + tiles2;
    int m = *count;  // rows that are real; an input of the step, which no kernel writes
    int columns = (m + COLUMNS - 1) / COLUMNS;  // tiles of x
    int n_works = columns * ((n_tiles + WARPS - 1) / WARPS) * RANKS;
    // of work w: its rank w % RANKS, its tile of x, and its block of W, which changes last
    auto first_row = [&](int work) { return work / RANKS % columns * COLUMNS; };
    auto block_of = [&](int work) { return work / RANKS / columns; };
    auto first_piece = [&](int work) { return work % RANKS * n_pieces / RANKS; };
    auto end_piece = [&](int work) { return (work % RANKS + 1) * n_pieces / RANKS; };

    if (warp >= WARPS) {
        set_registers_down<40>();
        if (warp > WARPS || !elect()) return;
        pdl_wait();
        int at = 0;
        u32 parity = 1;
        for (int work = blockIdx.x; work < n_works; work += gridDim.x) {
            int row = first_row(work), end = min(4 * end_piece(work), 2 * n_strips);
            u32 bytes = min(COLUMNS, padded_m - row) * 128;
            for (int c = 4 * first_piece(work); c < end; c++) {
                barrier_wait(empty + at, parity);
                fill(xs + at * X_BYTES, x + ((u64)c * padded_m + row) * 128, bytes, full + at);
                if (++at == X_STAGES) at = 0, parity ^= 1;
            }
        }
        return;
    }

    set_registers_up<232>();
    int lane = threadIdx.x % WARP;
    [[maybe_unused]] int group = warp / 4;
    // a tile past the last is the last once more, and not written
    auto my_tile = [&](int work) { return min(tile_of(block_of(work), warp), n_tiles - 1); };
    Ring ring(rings + warp * Ring::BYTES, barriers + warp * STAGES);
    int next = blockIdx.x, next_piece = first_piece(next);  // to fetch
    auto fetch = [&](int slot) {
        const u8* from[1] = {};
        u32 bytes[1] = {};
        if (next < n_works) {
            int tile = my_tile(next);
            from[0] =
                segment_of(tile, k, w0, w1, w2, first1, first2).at(tile, next_piece, bytes[0]);
            if (++next_piece == end_piece(next)) {
                next += gridDim.x;
                next_piece = first_piece(next);
            }
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
        int tile = my_tile(work), row = first_row(work);
        int first = 2 * first_piece(work), end = min(2 * end_piece(work), n_strips);
        const u8* piece = nullptr;
#pragma unroll 1
        for (int s = first; s < end; s++) {
            if (s % 2 == 0) piece = ring.wait();
            for_type(tile, first1, first2, ReadStrip{piece, s % 2, lane, words});
            for_type(tile, first1, first2, ExpandHalf<0>{words, a[0]});
            multiply(a[0], s > first);
            for_type(tile, first1, first2, ExpandHalf<1>{words, a[1]});
            multiply(a[1], true);
            if (s % 2 || s == end - 1) {
                __syncwarp();
                fetch(ring.at);
                ring.advance();
            }
        }
        wgmma_wait<0>();
        settle_sums(d);
        if (threadIdx.x % 128 == 0) barrier_arrive(empty + before);
        if constexpr (RANKS > 1) {
            int number = work / RANKS;
            float4* sums = partial + (u64)number * (RANKS * COLUMNS / 8 * CONSUMERS);
            if (!add_ranks(d, sums, counters + number, work % RANKS, last)) continue;
        }
#if HALVES
        write_vectors(y, d, buffers + group * 2 * TOGETHER, 1 + group, tile,
                      block_of(work) * 8 + group * 4, row, m, padded_m);
#else
        if (tile == tile_of(block_of(work), warp))
            write_columns<EPILOGUE>(y, d, tile * 16 + lane / 4, row + lane % 4 * 2, m);
#endif
    }
}
#endif
