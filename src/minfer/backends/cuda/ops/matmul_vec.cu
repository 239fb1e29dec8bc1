// y = W x for few rows of x, at the speed W streams from memory.
//
// What: out[r][n] = factor[n] * sum_k W[n][k] x[r][k] (+ bias[n]) (+ residual[r][n]) for r < ROWS, or
//   act(gate row) * up row. Up to three weights of one input, side by side in the output.
// Layouts: W blocks of `lib/quant.cuh`, [tile][block]; factor f32 [all tiles * 16]; x f32 [rows][K];
//   out f32 [rows][stride]. GATED: rows 0-7 of a tile are gate, 8-15 up rows of the same 8 outputs.
// Who: a block owns row tiles b, b + gridDim, ...; the K of a tile is cut into parts of PIECES * 256,
//   and items (tile, part) go round to the WARPS warps. A warp streams its items through a ring of its
//   own, one piece of 256 a slot, expands it in registers and multiplies on the tensor cores: W is the
//   A operand, x the B operand, a column a row of x. It leaves the item's partial sums in shared
//   memory. One more warp adds the parts of a finished tile and writes the outputs.
//   The rings start before the wait for the previous kernel: weights never change.
// Floor: bytes of W over memory bandwidth. Arithmetic takes about 1.7 lane instructions a weight
//   (q4_K), of 4.4 that a memory-bound multiprocessor has.
// Limits: K a multiple of 8; ROWS <= 16, and x in halves beside the rings in shared memory.
// Numerics: halves of W and x, f32 sums. Within a part k ascends; parts are added in order, in
//   sections of SECTION (`lib/order.cuh`): `matmul_batch` gives the same bits, for any number of rows.
// Versions: 1 (2026-11) tensor cores, warp rings, programmatic launch.
#include "lib/epilogue.cuh"
#include "lib/mma.cuh"
#include "lib/order.cuh"
#include "lib/pipeline.cuh"
#include "lib/quant.cuh"

#ifndef TYPE0
#define TYPE0 Q4_K
#endif
#ifndef TYPE1
#define TYPE1 TYPE0
#define TYPE2 TYPE0
#endif
#ifndef ROWS
#define ROWS 1
#define PIECES 2
#define WARPS 12
#define STAGES 4
#define TILES_IN_FLIGHT 4  // whose partial sums are kept at a time
#define EPILOGUE 0
#endif

constexpr int THREADS = (WARPS + 1) * WARP;
constexpr int NT = (ROWS + 7) / 8;  // column tiles
template <class F>
constexpr int PIECE_BYTES = 256 / F::BLOCK * Packed<F>::BYTES;
DEVICE constexpr int max3(int a, int b, int c) { return a > b ? (a > c ? a : c) : (b > c ? b : c); }
constexpr int SLOT = max3(PIECE_BYTES<TYPE0>, PIECE_BYTES<TYPE1>, PIECE_BYTES<TYPE2>);
using Ring = WarpRing<STAGES, SLOT>;

struct Segment {
    const u8* w;
    int first_tile, block_bytes, blocks_a_piece, n_blocks;
};

struct Shape {
    int k, n_pieces, n_parts;
};

template <class F>
DEVICE Segment segment(const Shape& shape, const u8* w, int first_tile) {
    return {w, first_tile, Packed<F>::BYTES, 256 / F::BLOCK, (shape.k + F::BLOCK - 1) / F::BLOCK};
}

// Calls `f` with the type of a tile's weight; types that are the same share the code.
template <class A, class B>
constexpr bool SAME = false;
template <class A>
constexpr bool SAME<A, A> = true;
template <class Function>
DEVICE void for_type(int tile, int first1, int first2, Function f) {
    bool in1 = tile >= first1, in2 = tile >= first2;
    if constexpr (SAME<TYPE0, TYPE1> && SAME<TYPE1, TYPE2>) {
        f(TYPE0());
    } else if constexpr (SAME<TYPE1, TYPE2>) {
        in1 ? f(TYPE1()) : f(TYPE0());
    } else if constexpr (SAME<TYPE0, TYPE1>) {
        in2 ? f(TYPE2()) : f(TYPE0());
    } else if constexpr (SAME<TYPE0, TYPE2>) {
        in1 && !in2 ? f(TYPE1()) : f(TYPE0());
    } else {
        in2 ? f(TYPE2()) : in1 ? f(TYPE1()) : f(TYPE0());
    }
}

// Where a warp is in its items, piece by piece.
struct Cursor {
    int tile, part, piece;  // tile counts those of this block

    DEVICE void start(int warp, int n_parts) {
        tile = warp / n_parts;
        part = warp % n_parts;
        piece = 0;
    }
    DEVICE int pieces(const Shape& shape) const {
        return min(PIECES, shape.n_pieces - part * PIECES);
    }
    // Answers whether the item ended.
    DEVICE bool advance(const Shape& shape) {
        if (++piece < pieces(shape)) return false;
        piece = 0;
        part += WARPS;
        while (part >= shape.n_parts) part -= shape.n_parts, tile++;
        return true;
    }
};

template <class F>
DEVICE void multiply(const u8* slot, int n_blocks, const u8* (&x)[NT], int k0,
                     float (&acc)[NT][4], int lane) {
    for (int b = 0; b < n_blocks; b++) {
#pragma unroll
        for (int s = 0; s < Packed<F>::STRIPS; s++) {
            Strip<F> strip(slot + b * Packed<F>::BYTES, s, lane);
            int at = (k0 + b * F::BLOCK + s * 128) * 2;
            u32 w[2][8];
            strip.template expand<0>(w);
#pragma unroll
            for (int n = 0; n < NT; n++) multiply_half(acc[n], w, x[n] + at);
            strip.template expand<1>(w);
#pragma unroll
            for (int n = 0; n < NT; n++) multiply_half(acc[n], w, x[n] + at + 128);
        }
    }
}

KERNEL __launch_bounds__(THREADS)
matmul_vec(const u8* w0, const u8* w1, const u8* w2, const float* factor, const float* x,
           const float* bias, const float* residual, float* out, int k, int tiles0, int tiles1,
           int tiles2, int stride) {
    extern __shared__ __align__(128) u8 shared[];
    int n_pieces = (k + 255) / 256;
    Shape shape = {k, n_pieces, (n_pieces + PIECES - 1) / PIECES};
    int n_tiles = tiles0 + tiles1 + tiles2;
    int mine = (n_tiles - (int)blockIdx.x + (int)gridDim.x - 1) / (int)gridDim.x;
    int x_stride = shape.n_pieces * 512 + 64;  // bytes; 64 past 128: rows of x fall in other banks

    u8* rings = shared;
    float* partials = (float*)(rings + WARPS * Ring::BYTES);
    int tile_floats = shape.n_parts * ROWS * 16;  // [part][row of x][row of the tile]
    u8* xs = (u8*)(partials + TILES_IN_FLIGHT * tile_floats);
    u64* barriers = (u64*)(xs + ROWS * x_stride);
    u64* full = barriers + WARPS * STAGES;
    u64* empty = full + TILES_IN_FLIGHT;

    int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    pdl_launch();
    if (lane == 0) {
        if (warp < WARPS) {
            for (int i = 0; i < STAGES; i++) barrier_init(barriers + warp * STAGES + i, 1);
        } else {
            for (int i = 0; i < TILES_IN_FLIGHT; i++) {
                barrier_init(full + i, shape.n_parts);
                barrier_init(empty + i, 1);
            }
        }
#if __CUDA_ARCH__ >= 900
        barrier_init_fence();
#endif
    }
    __syncwarp();

    auto find = [&](int tile) {
        Segment found = segment<TYPE0>(shape, w0, 0);
        if (tile >= tiles0) found = segment<TYPE1>(shape, w1, tiles0);
        if (tile >= tiles0 + tiles1) found = segment<TYPE2>(shape, w2, tiles0 + tiles1);
        return found;
    };
    auto piece_at = [&](const Cursor& c, u32& bytes) {
        bytes = 0;
        if (c.tile >= mine) return (const u8*)nullptr;
        int tile = blockIdx.x + c.tile * gridDim.x;
        Segment s = find(tile);
        int first = (c.part * PIECES + c.piece) * s.blocks_a_piece;
        bytes = min(s.blocks_a_piece, s.n_blocks - first) * s.block_bytes;
        return s.w + ((u64)(tile - s.first_tile) * s.n_blocks + first) * s.block_bytes;
    };

    Ring ring(rings + warp * Ring::BYTES, barriers + warp * STAGES, lane);
    Cursor ahead;
    if (warp < WARPS) {
        ahead.start(warp, shape.n_parts);
#pragma unroll
        for (int i = 0; i < STAGES; i++) {
            u32 bytes;
            const u8* from = piece_at(ahead, bytes);
            ring.issue(i, from, bytes);
            ahead.advance(shape);
        }
    }

    pdl_wait();
    stage_activations<THREADS>(xs, x_stride, x, ROWS, k, shape.n_pieces * 256);
    __syncthreads();

    if (warp < WARPS) {
        const u8* x_lane[NT];
#pragma unroll
        for (int n = 0; n < NT; n++)
            x_lane[n] = xs + min(n * 8 + lane / 4, ROWS - 1) * x_stride + lane % 4 * 16;
        Cursor here;
        here.start(warp, shape.n_parts);
        while (here.tile < mine) {
            int tile = here.tile, part = here.part;
            int global_tile = blockIdx.x + tile * gridDim.x;
            float acc[NT][4] = {};
            bool ended;
            do {
                const u8* slot = ring.wait();
                int piece = here.part * PIECES + here.piece;
                auto one = [&](auto type) {
                    using F = decltype(type);
                    int left = (k + F::BLOCK - 1) / F::BLOCK - piece * (256 / F::BLOCK);
                    multiply<F>(slot, min(256 / F::BLOCK, left), x_lane, piece * 256, acc, lane);
                };
                for_type(global_tile, tiles0, tiles0 + tiles1, one);
                u32 bytes;
                const u8* from = piece_at(ahead, bytes);
                ring.refill(from, bytes);
                ahead.advance(shape);
                ended = here.advance(shape);
            } while (!ended);

            int slot = tile % TILES_IN_FLIGHT;
            if (tile >= TILES_IN_FLIGHT) barrier_wait(empty + slot, (tile / TILES_IN_FLIGHT - 1) & 1);
            float* to = partials + slot * tile_floats + part * ROWS * 16 + lane / 4;
#pragma unroll
            for (int n = 0; n < NT; n++)
#pragma unroll
                for (int i = 0; i < 2; i++) {
                    int row = n * 8 + lane % 4 * 2 + i;
                    if (row < ROWS) {
                        to[row * 16] = acc[n][i];
                        to[row * 16 + 8] = acc[n][2 + i];
                    }
                }
            __syncwarp();
            if (lane == 0) barrier_arrive(full + slot);
        }
    } else {
        for (int tile = 0; tile < mine; tile++) {
            int global_tile = blockIdx.x + tile * gridDim.x;
            int n = lane % 16, column = global_tile * 16 + n;
            float scale = factor[column];
            int slot = tile % TILES_IN_FLIGHT;
            constexpr int STEPS = (ROWS + 1) / 2;  // 2 rows of x at a time
            float extra[STEPS];
#pragma unroll
            for (int i = 0; i < STEPS; i++) {
                int row = i * 2 + lane / 16;
                extra[i] = 0.0f;
                if (row >= ROWS || column >= stride) continue;
                if (bias) extra[i] += bias[column];
                if (residual) extra[i] += residual[(u64)row * stride + column];
            }
            barrier_wait(full + slot, (tile / TILES_IN_FLIGHT) & 1);
#pragma unroll
            for (int i = 0; i < STEPS; i++) {
                int row = i * 2 + lane / 16;
                const float* from = partials + slot * tile_floats + min(row, ROWS - 1) * 16 + n;
                Sum sum;
                for (int p = 0; p < shape.n_parts; p++) sum.add(from[p * ROWS * 16], p);
                float y = sum.total() * scale;
                if constexpr (EPILOGUE == PLAIN_OUT) {
                    if (row < ROWS && column < stride)
                        out[(u64)row * stride + column] = y + extra[i];
                } else {
                    float up = __shfl_down_sync(FULL_MASK, y, 8);
                    int pair = global_tile * 8 + n;
                    if (row < ROWS && n < 8 && pair < stride)
                        out[(u64)row * stride + pair] = gated<EPILOGUE>(y, up);
                }
            }
            __syncwarp();
            if (lane == 0) barrier_arrive(empty + slot);
        }
    }
}
