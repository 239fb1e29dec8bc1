// y = W x for one row of x, at the speed W streams from memory.
//
// What: out[n] = factor[n] * sum_k W[n][k] x[k] (+ bias[n]) (+ residual[n]), or
//   act(gate row) * up row. With `norm`, x is first normed: its root mean square is a factor of
//   the output. Up to three weights of one input, side by side in the output.
// Layouts: W blocks of `lib/quant.cuh`, [tile][block]; factor f32 [all tiles * 16]; x f32
//   [K]; norm f32 [K] or null; out f32 [stride]. Gated: rows 0-7 of a tile are gate,
//   8-15 up rows of the same 8 outputs.
// Who: a block owns row tiles b, b + gridDim, ...; they go round to its GROUPS groups of PARTS
//   warps, and each warp of a group has a part of K of all the group's tiles. A warp streams its
//   pieces, 256 of K of a tile, through a ring of its own and multiplies them as bytes on the
//   integer tensor cores: W is the A operand; the B operand has a group of 32 of x in columns of
//   its own (`lib/act_bytes.cuh`), so the exact sum of each group comes out in the lane that has
//   the group's scales. The parts' sums wait in shared memory until a round of tiles is done (of
//   several rounds two buffers: one barrier each), then the block adds them and writes the outputs.
//   A warp makes its own share of x, so none waits for another before that. Weights never change:
//   rings start before the wait for the previous kernel.
// Floor: bytes of W over memory bandwidth. Arithmetic takes about 1 lane instruction a weight
//   (q4_K), of 4.4 that a memory-bound multiprocessor has.
// Limits: quantized types; K a multiple of 8; x in bytes beside the rings.
// Numerics: x to 16 bits by groups of 16, sums of a group exact, all else in f32. The bits
//   depend on PARTS, which is a function of the weights' shapes, and not on the grid.
// Versions: 1 (2026-11) weights expanded to halves, f16 tensor cores, warp rings, programmatic
//   launch: gate and up of a 7B layer took 45 us in a token's chain, 27 % of the issue slots. 2:
//   integers: 30 us, half of the instructions for moving between parts of tiles. 3: a warp keeps
//   to its part of K. 4: less before the first copy and behind the last piece
//   (`docs/kernels/matmul_cuda.md`).
#include "lib/act_bytes.cuh"
#include "lib/epilogue.cuh"
#include "lib/mma.cuh"
#include "lib/pipeline.cuh"
#include "lib/quant_bytes.cuh"
#include "lib/segments.cuh"

#ifndef PARTS
#define PARTS 14
#define GROUPS 1
#define STAGES 3
#define SEGMENTS 1
#define ONE_PIECE 1
#endif

constexpr int WARPS = PARTS * GROUPS, THREADS = WARPS * WARP;
constexpr int BARRIER_BYTES = (WARPS * STAGES * 8 + 127) / 128 * 128;
constexpr int X_PIECE = 2 * (CODE_STRIP + SCALE_STRIP);  // bytes: two strips
using Ring = WarpRing<STAGES, MAX_PIECE>;

constexpr int AT_ONCE = ONE_PIECE ? 1 : 2;  // pieces of x that a warp packs
constexpr int AHEAD = ONE_PIECE ? 1 : 5;    // and that are on their way to it

// A lane's values of a piece, of x or of its norm's weights, on their way.
struct Piece {
    float4 v[2];

    // Piece p of the first `end` values, `other` where there are none.
    DEVICE void load(const float* from, int p, int end, float other, int lane) {
#pragma unroll
        for (int s = 0; s < 2; s++) {
            int at = (2 * p + s) * 32 + lane;  // in vectors of four
            v[s] = make_float4(other, other, other, other);
            if (at * 4 < end) v[s] = ((const float4*)from)[at];
        }
    }

    // Pack it, and answer the lane's sum of squares.
    DEVICE float pack(const Piece& norm, u8* to, int lane) const {
        float square = 0.0f;
#pragma unroll
        for (int s = 0; s < 2; s++) {
            float4 x = v[s], n = norm.v[s];
            square += x.x * x.x + x.y * x.y + x.z * x.z + x.w * x.w;
            x = make_float4(x.x * n.x, x.y * n.y, x.z * n.z, x.w * n.w);
            pack_strip(to + s * CODE_STRIP, to + 2 * CODE_STRIP + s * SCALE_STRIP, x, lane);
        }
        return square;
    }
};

// A lane's view of a piece of x: its codes of two strips, and their scales.
struct Input {
    uint4 codes[2][2];
    float4 scales[2];  // scale, sum, scale, sum

    // From the piece at `at`, at offset `mine` or, where the lane reads zeros, from `zeros`.
    DEVICE void load(const u8* at, int mine, const u8* zeros, int t) {
#pragma unroll
        for (int s = 0; s < 2; s++) {
            const uint4* p = (const uint4*)(zeros ? zeros : at + s * CODE_STRIP + mine);
            codes[s][0] = p[0], codes[s][1] = p[1];
            scales[s] = ((const float4*)(at + 2 * CODE_STRIP + s * SCALE_STRIP))[t];
        }
    }
};

template <class F, int Q>
DEVICE void operand(const Strip<F>& w, u32 (&a)[4]) {
    weight_bytes<F, 0, Q>(w, a[0], a[2]);
    weight_bytes<F, 1, Q>(w, a[1], a[3]);
}

// Adds the products of a strip of weights with strip s of x.
template <class F>
DEVICE void multiply(const Strip<F>& w, const Input& x, int s, float (&sums)[2]) {
    u32 a[4][4];
    operand<F, 0>(w, a[0]);
    operand<F, 1>(w, a[1]);
    operand<F, 2>(w, a[2]);
    operand<F, 3>(w, a[3]);
    float scale[2][2], summand[2][2];
    weight_factors<F, 0, 0>(w, scale[0][0], summand[0][0]);
    weight_factors<F, 1, 0>(w, scale[1][0], summand[1][0]);
    if constexpr (F::GROUP == 16) {
        weight_factors<F, 0, 1>(w, scale[0][1], summand[0][1]);
        weight_factors<F, 1, 1>(w, scale[1][1], summand[1][1]);
    }
    uint4 first = x.codes[s][0], second = x.codes[s][1];
    float4 f = x.scales[s];
    i32 c[2][4];
    mma_u8_first(c[0], a[0], first.x, first.y);
    mma_u8_first(c[1], a[2], second.x, second.y);
    mma_u8(c[0], a[1], first.z, first.w);
    mma_u8(c[1], a[3], second.z, second.w);
#pragma unroll
    for (int h = 0; h < 2; h++) {
        float y0 = (float)(c[0][2 * h] * 256 + c[0][2 * h + 1]) * f.x;
        float y1 = (float)(c[1][2 * h] * 256 + c[1][2 * h + 1]);
        float& sum = sums[h];
        if constexpr (F::GROUP == 16) {
            sum = fmaf(y0, scale[h][0], fmaf(f.y, summand[h][0], sum));
            sum = fmaf(y1 * f.z, scale[h][1], fmaf(f.w, summand[h][1], sum));
        } else {
            sum = fmaf(f.y + f.w, summand[h][0], sum);
            sum = fmaf(fmaf(y1, f.z, y0), scale[h][0], sum);
        }
    }
}

// A warp's share of x in shared memory, and where a lane finds its own in a piece of it.
struct Share {
    const u8* pieces;  // [piece][X_PIECE]
    const u8* zeros;   // null where the lane reads x
    int mine, t;

    DEVICE void read(Input& to, int piece) const {
        to.load(pieces + piece * X_PIECE, mine, zeros, t);
    }
};

// Adds the products of a piece.
struct Multiply {
    const u8* piece;
    bool odd;  // it has one strip: any stands in for the other, x is zero there
    const Input& x;
    float (&sums)[2];
    int lane;

    template <class F>
    DEVICE void run() const {
        constexpr bool two = Packed<F>::STRIPS == 2;
        // a row's factor has 2^ACT_SHIFT
        constexpr float unit = power2_f32(-EXCESS<F> - ACT_SHIFT);
        float mine[2] = {};
        multiply(Strip<F>(piece, 0, lane), x, 0, mine);
        multiply(Strip<F>(two || odd ? piece : piece + Packed<F>::BYTES, two, lane), x, 1, mine);
#pragma unroll
        for (int h = 0; h < 2; h++) sums[h] = fmaf(mine[h], unit, sums[h]);
    }
};

KERNEL __launch_bounds__(THREADS, 1)
matmul_vec(const u8* w0, const u8* w1, const u8* w2, const float* factor, const float* x,
           const float* norm, const float* bias, const float* residual, float* out, int k,
           int tiles0, int tiles1, int tiles2, int stride, int most_tiles, int round_tiles,
           int epilogue, float eps) {
    extern __shared__ __align__(128) u8 shared[];
    int warp = keep(threadIdx.x / WARP), lane = keep(threadIdx.x % WARP);
    int part = warp % PARTS, group = warp / PARTS;

    // Mostly a block starts as the last kernel's leaves, and until the first piece is asked for no
    // memory moves: nothing comes before that but what it takes.
    pdl_launch();
    u64* barriers = (u64*)shared + warp * STAGES;
    u8* rings = shared + BARRIER_BYTES;
    if (elect()) {
#pragma unroll
        for (int i = 0; i < STAGES; i++) barrier_init(barriers + i, 1);
#if BULK_COPIES
        barrier_init_fence();
#endif
    }
    __syncwarp();

    // the warp's pieces, tile by tile
    u32 n_strips = (k + 127u) / 128, n_pieces = (n_strips + 1) / 2;
    int first = part * n_pieces / PARTS, n_mine = (part + 1) * n_pieces / PARTS - first;
    int first1 = tiles0, first2 = tiles0 + tiles1, n_tiles = first2 + tiles2;
    Ring ring(rings + warp * Ring::BYTES, barriers);
    int stride_tiles = gridDim.x * GROUPS, tile_ahead = blockIdx.x + gridDim.x * group, ahead = 0;
    const u8* next = nullptr;
    u32 full = 0, last = 0;  // bytes of a piece, and of the part's last one
    u64 jump = 0;
    auto locate = [&] {
        if (tile_ahead >= n_tiles) return;
        Segment s = SEGMENTS == 1 ? segment<TYPE0>(k, w0, 0)
                                  : segment_of(tile_ahead, k, w0, w1, w2, first1, first2);
        next = s.at(tile_ahead, first + n_mine - 1, last);
        next = s.at(tile_ahead, first, full);
        jump = (u64)stride_tiles * s.n_blocks * s.block_bytes - (u64)(n_mine - 1) * full;
    };
    locate();
    auto fetch = [&](int slot) {
        const u8* from[1] = {next};
        u32 bytes[1] = {tile_ahead < n_tiles ? ahead + 1 < n_mine ? full : last : 0};
        ring.issue(slot, from, bytes, 0);
        if (++ahead < n_mine) {
            next += full;
        } else {
            ahead = 0;
            tile_ahead += stride_tiles;
            if (SEGMENTS == 1)
                next += jump;
            else
                locate();
        }
    };
    // Copies are taken 64 bytes a cycle, and what is loaded behind them comes behind them: one slot
    // is asked for before it is known whether there is x, the others behind it.
    fetch(0);
    pdl_wait();
    Piece coming[AHEAD], weights[AT_ONCE];
    auto load_x = [&](Piece& to, int p) { to.load(x, first + p, p < n_mine ? k : 0, 0.0f, lane); };
    auto load_norm = [&](Piece& to, int p) {
        to.load(norm, first + p, norm && p < n_mine ? k : 0, 1.0f, lane);
    };
#pragma unroll
    for (int i = 0; i < AHEAD; i++) load_x(coming[i], i);
#pragma unroll
    for (int i = 0; i < AT_ONCE; i++) load_norm(weights[i], i);
    int my_tiles = most_tiles;
    if ((int)(blockIdx.x + (most_tiles - 1) * gridDim.x) >= n_tiles) my_tiles--;
    // a thread finishes rows g and g + 8 of a tile
    Output y = {factor, bias, residual, out, stride};
    auto column = [&](int i) { return (blockIdx.x + i / 8 * gridDim.x) * 16 + i % 8; };
    auto ends_of = [&](int i) { return y.ends(epilogue, 0, column(i)); };
    Ends ends = {};
    if (threadIdx.x < min(round_tiles, my_tiles) * 8) ends = ends_of(threadIdx.x);
#pragma unroll 1
    for (int i = 1; i < STAGES; i++) fetch(i);

    int g = lane / 4, t = lane % 4;
    int x_bytes = (n_pieces + PARTS - 1) / PARTS * X_PIECE + 128;  // of a warp, and zeros
    u8* xs = rings + WARPS * Ring::BYTES + warp * x_bytes;
    float* sums = (float*)(rings + WARPS * (Ring::BYTES + x_bytes));
    int round_sums = PARTS * round_tiles * 16;  // [part][tile][row % 8][row / 8]
    int buffers = round_tiles < most_tiles ? 2 : 1;
    float* squares = sums + buffers * round_sums;  // [part]

    ((u32*)xs)[lane] = 0;
    const u8* zeros = g / 2 == t ? nullptr : xs + 48;
    xs += 128;
    float square = 0.0f;
#pragma unroll 1
    for (int p = 0; p < (ONE_PIECE ? 1 : n_mine); p += AT_ONCE) {
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++)
            if (ONE_PIECE || p + i < n_mine)
                square += coming[i].pack(weights[i], xs + (p + i) * X_PIECE, lane);
        if constexpr (!ONE_PIECE) {
#pragma unroll
            for (int i = 0; i < AHEAD; i++) {
                if (i + AT_ONCE < AHEAD)
                    coming[i] = coming[i + AT_ONCE];
                else
                    load_x(coming[i], p + AT_ONCE + i);
                if (i < AT_ONCE) load_norm(weights[i], p + AT_ONCE + i);
            }
        }
    }
    if (norm) {
        square = warp_sum(square);
        if (lane == 0 && group == 0) squares[part] = square;
    }
    __syncwarp();

    Share share = {xs, zeros, t * 64 + g % 2 * 32, t};
    Input in;
    if (ONE_PIECE) share.read(in, 0);
    int local = group;  // the tile's number in the block
#pragma unroll 1
    for (int begin = 0, buffer = 0; begin < my_tiles; begin += round_tiles, buffer ^= 1) {
        int end = min(begin + round_tiles, my_tiles);
        float* all = sums + buffer * round_sums;
        int first_output = begin * 8;
        if (begin && threadIdx.x < (end - begin) * 8) ends = ends_of(first_output + threadIdx.x);
#pragma unroll 1
        for (; local < end; local += GROUPS) {
            int tile = blockIdx.x + local * gridDim.x;
            float acc[2] = {};
#pragma unroll 1
            for (int p = 0; p < n_mine; p++) {
                const u8* piece = ring.wait();
                if (!ONE_PIECE) share.read(in, p);
                Multiply add{piece, 2 * (first + p) + 1 == n_strips, in, acc, lane};
                for_type(tile, first1, first2, add);
                __syncwarp();
                fetch(ring.at);
                ring.advance();
            }
            // of four lanes even ones come to have the sum of row g, odd ones that of row g + 8
            bool odd = t % 2;
            float mine = odd ? acc[1] : acc[0];
            mine += __shfl_xor_sync(FULL_MASK, odd ? acc[0] : acc[1], 1);
            mine += __shfl_xor_sync(FULL_MASK, mine, 2);
            if (t < 2) all[(part * round_tiles + local - begin) * 16 + g * 2 + t] = mine;
        }
        __syncthreads();
#pragma unroll 1
        for (int i = threadIdx.x; i < (end - begin) * 8; i += THREADS) {
            if (i >= THREADS) ends = ends_of(first_output + i);
            float a = 0.0f, b = 0.0f, all_squares = 0.0f;
#pragma unroll
            for (int p = 0; p < PARTS; p++) {
                float2 v = ((const float2*)(all + p * round_tiles * 16))[i];
                a += v.x, b += v.y;
                if (norm) all_squares += squares[p];
            }
            float scale = norm ? rsqrtf(__fdividef(all_squares, k) + eps) : 1.0f;
            y.finish(epilogue, 0, column(first_output + i), a * scale, b * scale, ends);
        }
    }
}
