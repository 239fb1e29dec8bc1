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
//   the group's scales. The parts' sums wait in shared memory until ROUND tiles are done (ROUND,
//   two buffers of it: one barrier a round), then the block adds them and writes the outputs. A
//   warp makes its own share of x, so none waits for another before that. The rings start before
//   the wait for the previous kernel: weights never change.
// Floor: bytes of W over memory bandwidth. Arithmetic takes about 1 lane instruction a weight
//   (q4_K), of 4.4 that a memory-bound multiprocessor has.
// Limits: quantized types; K a multiple of 8; x in bytes beside the rings.
// Numerics: x to 16 bits by groups of 16, sums of a group exact, all else in f32. The bits
//   depend on PARTS, which is a function of the weights' shapes, and not on the grid.
// Versions: 1 (2026-11) weights expanded to halves, f16 tensor cores, warp rings, programmatic
//   launch: gate and up of a 7B layer took 45 us in a token's chain, 27 % of the issue slots. 2:
//   integers: 30 us, half of the instructions for moving between parts of tiles. 3: a warp keeps
//   to its part of K.
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
constexpr int X_PIECE = 2 * (CODE_STRIP + SCALE_STRIP);  // bytes: two strips
using Ring = WarpRing<STAGES, MAX_PIECE>;

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
           int tiles0, int tiles1, int tiles2, int stride, int round_tiles, int epilogue,
           float eps) {
    extern __shared__ __align__(128) u8 shared[];
    int n_strips = (k + 127) / 128, n_pieces = (n_strips + 1) / 2;
    int first1 = tiles0, first2 = tiles0 + tiles1, n_tiles = first2 + tiles2;
    int most_pieces = (n_pieces + PARTS - 1) / PARTS;
    int x_bytes = most_pieces * X_PIECE + 128;  // of a warp, and zeros

    int warp = keep(threadIdx.x / WARP), lane = keep(threadIdx.x % WARP);
    int g = lane / 4, t = lane % 4;
    int part = warp % PARTS, group = warp / PARTS;
    int first = part * n_pieces / PARTS, n_mine = (part + 1) * n_pieces / PARTS - first;
    u8* rings = shared;
    u8* xs = rings + WARPS * Ring::BYTES + warp * x_bytes;
    float2* sums = (float2*)(rings + WARPS * (Ring::BYTES + x_bytes));
    int round_sums = round_tiles * PARTS * WARP;  // [tile][part][lane]
    int my_tiles = ((int)gridDim.x - 1 - (int)blockIdx.x + n_tiles) / (int)gridDim.x;
    int buffers = round_tiles < (n_tiles + (int)gridDim.x - 1) / (int)gridDim.x ? 2 : 1;
    float* squares = (float*)(sums + buffers * round_sums);  // [part]
    u64* barriers = (u64*)(squares + ((PARTS + 1) & ~1)) + warp * STAGES;

    pdl_launch();
    if (elect()) {
#pragma unroll
        for (int i = 0; i < STAGES; i++) barrier_init(barriers + i, 1);
#if BULK_COPIES
        barrier_init_fence();
#endif
    }
    __syncwarp();

    // the warp's pieces, tile by tile
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
#pragma unroll 1
    for (int i = 0; i < STAGES; i++) fetch(i);

    ((u32*)xs)[lane] = 0;
    const u8* zeros = g / 2 == t ? nullptr : xs + 48;
    xs += 128;
    pdl_wait();
    float square = 0.0f;
#pragma unroll 4
    for (int s = 0; s < 2 * n_mine; s++) {
        int at = (2 * first + s) * 32 + lane;  // in vectors of four
        float4 v = {0, 0, 0, 0};
        if (at * 4 < k) {
            v = ((const float4*)x)[at];
            square += v.x * v.x + v.y * v.y + v.z * v.z + v.w * v.w;
            if (norm) {
                float4 n = __ldg((const float4*)norm + at);
                v.x *= n.x, v.y *= n.y, v.z *= n.z, v.w *= n.w;
            }
        }
        u8* piece = xs + s / 2 * X_PIECE;
        pack_strip(piece + s % 2 * CODE_STRIP, piece + 2 * CODE_STRIP + s % 2 * SCALE_STRIP, v,
                   lane);
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
        float2* all = sums + buffer * round_sums;
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
            all[((local - begin) * PARTS + part) * WARP + lane] = make_float2(acc[0], acc[1]);
        }
        __syncthreads();
        // a thread rows g and g + 8 of a tile
#pragma unroll 1
        for (int i = threadIdx.x; i < (end - begin) * 8; i += THREADS) {
            int at = i / 8, tile = blockIdx.x + (begin + at) * gridDim.x;
            float a = 0.0f, b = 0.0f, all_squares = 0.0f;
#pragma unroll
            for (int p = 0; p < PARTS; p++) {
                const float4* from = (const float4*)(all + (at * PARTS + p) * WARP);
                float4 u = from[i % 8 * 2], v = from[i % 8 * 2 + 1];
                a += u.x + u.z + (v.x + v.z);
                b += u.y + u.w + (v.y + v.w);
                if (norm) all_squares += squares[p];
            }
            float scale = norm ? rsqrtf(__fdividef(all_squares, k) + eps) : 1.0f;
            Output y = {factor, bias, residual, out, stride};
            y.finish(epilogue, 0, tile * 16 + i % 8, a * scale, b * scale);
        }
    }
}
