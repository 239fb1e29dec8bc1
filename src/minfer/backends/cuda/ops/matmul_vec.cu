// y = W x for few rows of x, at the speed W streams from memory.
//
// What: out[r][n] = factor[n] * sum_k W[n][k] x[r][k] (+ bias[n]) (+ residual[r][n]) for r < ROWS,
//   or act(gate row) * up row. Up to three weights of one input, side by side in the output.
// Layouts: W blocks of `lib/quant.cuh`, [tile][block]; factor f32 [all tiles * 16]; x f32
//   [rows][K]; out f32 [rows][stride]. Gated: rows 0-7 of a tile are gate, 8-15 up rows of the same
//   8 outputs.
// Who: a block owns row tiles b, b + gridDim, ...; the K of a tile is cut into parts, and items
//   (tile, two parts) go round to the WARPS warps. A warp streams its items, 256 of K of both parts
//   at a time, through a ring of its own, expands them in registers and multiplies on the tensor
//   cores, both parts at once to hide latency: W is the A operand, x the B operand, a column a row
//   of x. It leaves the parts' sums in shared memory. One more warp adds the parts of a finished
//   tile and writes the outputs. The rings start before the wait for the previous kernel: weights
//   never change.
// Floor: bytes of W over memory bandwidth. Arithmetic takes about 1.7 lane instructions a weight
//   (q4_K), of 4.4 that a memory-bound multiprocessor has.
// Limits: K a multiple of 8; ROWS <= 8, and x in halves beside the rings in shared memory.
// Numerics: halves of W and x, f32 sums in the order of `lib/order.cuh`: `matmul_batch` gives the
//   same bits, and so does any number of rows, blocks and warps.
// Versions: 1 (2026-11) tensor cores, warp rings, programmatic launch: the products of a 7B token
//   2.53 ms, though its kernels, each repeated alone, add up to 1.78. 2: two parts at once. 3:
//   everything of a shape at run time and loops left rolled, so that one small kernel of a type
//   serves all shapes: the difference is taken for 30 KB of instructions fetched anew at each
//   change of kernel. Not timed yet.
#include "lib/epilogue.cuh"
#include "lib/mma.cuh"
#include "lib/order.cuh"
#include "lib/pipeline.cuh"
#include "lib/segments.cuh"

#ifndef ROWS
#define ROWS 1
#define WARPS 11
#define STAGES 2
#endif

constexpr int THREADS = (WARPS + 1) * WARP;
using Ring = WarpRing<STAGES, 2 * MAX_PIECE>;

struct Shape {
    int part, n_pieces, n_parts, padded;  // pieces a part; padded: parts of a tile, made even

    DEVICE Shape(int k, int part) : part(part), n_pieces((k + 255) / 256) {
        n_parts = (n_pieces + part - 1) / part;
        padded = n_parts + (n_parts & 1);
    }
};

// Where a warp is in the items of its block, 256 of K of both parts a step.
struct Cursor {
    int tile, part, step;  // tile counts those of this block; part is the first of two

    DEVICE Cursor(int warp, const Shape& s) : tile(0), part(2 * warp), step(0) { wrap(s); }
    DEVICE void wrap(const Shape& s) {
        while (part >= s.padded) part -= s.padded, tile++;
    }
    // Goes to the next step of the item, or answers that there is none.
    DEVICE bool step_on(const Shape& s) {
        step++;
        return step < s.part && piece(s, 0) < s.n_pieces;
    }
    DEVICE void next_item(const Shape& s) {
        step = 0;
        part += 2 * WARPS;
        wrap(s);
    }
    DEVICE int piece(const Shape& s, int which) const { return (part + which) * s.part + step; }
};

// Adds the products of a step: two strips of each part. Where a strip is missing, at the end of K
// or because there is no second part, any other stands in: x is zero there, or the sum is not used.
struct Multiply {
    const u8 *first, *second;  // the pieces
    int last_first, last_second;  // their last strips
    u32 x_first, x_second;  // shared addresses of a lane's row of x and vector, at the pieces
    float (&acc)[2][4];
    int lane;

    template <class F>
    DEVICE void run() const {
#pragma unroll 1
        for (int s = 0; s < 2; s++) {
            Strip<F> a = strip_at<F>(first, min(s, last_first), lane);
            Strip<F> b = strip_at<F>(second, min(s, last_second), lane);
            quarter<F, 0>(a, b, s * 256);
            quarter<F, 1>(a, b, s * 256);
            quarter<F, 2>(a, b, s * 256);
            quarter<F, 3>(a, b, s * 256);
        }
    }

    template <class F, int Q>
    DEVICE void quarter(const Strip<F>& a, const Strip<F>& b, int offset) const {
        u32 wa[2][4], wb[2][4];
        a.template expand<Q>(wa);
        uint4 xa = load_shared16(x_first + offset + Q * 64);
        b.template expand<Q>(wb);
        uint4 xb = load_shared16(x_second + offset + Q * 64);
        multiply_both(acc[0], wa, xa, acc[1], wb, xb);
    }
};

KERNEL __launch_bounds__(THREADS, 2)
matmul_vec(const u8* w0, const u8* w1, const u8* w2, const float* factor, const float* x,
           const float* bias, const float* residual, float* out, int k, int tiles0, int tiles1,
           int tiles2, int stride, int part, int section, int log_in_flight, int epilogue) {
    extern __shared__ __align__(128) u8 shared[];
    Shape shape(k, part);
    int n_strips = (k + 127) / 128;
    int first1 = tiles0, first2 = tiles0 + tiles1, n_tiles = first2 + tiles2;
    int x_stride = shape.n_pieces * 512 + 64;  // bytes; 64 past 128: rows of x fall in other banks
    int tile_floats = shape.n_parts * ROWS * 16;  // [part][row of x][row of the tile]
    int in_flight = 1 << log_in_flight;           // tiles whose partial sums are kept at a time

    u8* rings = shared;
    float* partials = (float*)(rings + WARPS * Ring::BYTES);
    u8* xs = (u8*)(partials + (tile_floats << log_in_flight));
    u64* barriers = (u64*)(xs + ROWS * x_stride);
    u64* full = barriers + WARPS * STAGES;
    u64* empty = full + in_flight;

    int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    pdl_launch();
    if (lane == 0) {
        if (warp < WARPS) {
#pragma unroll 1
            for (int i = 0; i < STAGES; i++) barrier_init(barriers + warp * STAGES + i, 1);
        } else {
#pragma unroll 1
            for (int i = 0; i < in_flight; i++) {
                barrier_init(full + i, shape.padded / 2);
                barrier_init(empty + i, 1);
            }
        }
#if __CUDA_ARCH__ >= 900
        barrier_init_fence();
#endif
    }
    __syncwarp();

    Ring ring(rings + warp * Ring::BYTES, barriers + warp * STAGES, lane);
    Cursor ahead(warp, shape);
    auto tile_of = [&](int mine) { return (int)blockIdx.x + mine * (int)gridDim.x; };
    auto fetch = [&](int slot) {
        const u8* from[2] = {};
        u32 bytes[2] = {};
        int tile = tile_of(ahead.tile);
        if (tile < n_tiles) {
            Segment s = segment_of(tile, k, w0, w1, w2, first1, first2);
            from[0] = s.at(tile, ahead.piece(shape, 0), bytes[0]);
            if (ahead.piece(shape, 1) < shape.n_pieces)
                from[1] = s.at(tile, ahead.piece(shape, 1), bytes[1]);
        }
        ring.issue(slot, from, bytes, MAX_PIECE);
        if (!ahead.step_on(shape)) ahead.next_item(shape);
    };
    if (warp < WARPS)
#pragma unroll 1
        for (int i = 0; i < STAGES; i++) fetch(i);

    pdl_wait();
    stage_activations<THREADS>(xs, x_stride, x, ROWS, k, shape.n_pieces * 256);
    __syncthreads();

    if (warp < WARPS) {
        u32 x_lane = shared_address(xs) + min(lane / 4, ROWS - 1) * x_stride + lane % 4 * 16;
        Cursor here(warp, shape);
        for (; tile_of(here.tile) < n_tiles; here.next_item(shape)) {
            float acc[2][4] = {};
            do {
                const u8* slot = ring.wait();
                int a = here.piece(shape, 0), b = here.piece(shape, 1);
                bool two = b < shape.n_pieces;
                if (!two) b = a;
                for_type(tile_of(here.tile), first1, first2,
                         Multiply{slot, two ? slot + MAX_PIECE : slot, n_strips - 2 * a - 1,
                                  n_strips - 2 * b - 1, x_lane + a * 512, x_lane + b * 512, acc,
                                  lane});
                __syncwarp();
                fetch(ring.at);
                ring.advance();
            } while (here.step_on(shape));

            int place = here.tile & (in_flight - 1), round = here.tile >> log_in_flight;
            if (round) barrier_wait(empty + place, (round - 1) & 1);
            float* to = partials + place * tile_floats + here.part * ROWS * 16 + lane / 4;
#pragma unroll
            for (int p = 0; p < 2; p++) {
                if (here.part + p == shape.n_parts) break;
#pragma unroll
                for (int i = 0; i < 2; i++) {
                    int row = lane % 4 * 2 + i;
                    if (row < ROWS) {
                        to[(p * ROWS + row) * 16] = acc[p][i];
                        to[(p * ROWS + row) * 16 + 8] = acc[p][2 + i];
                    }
                }
            }
            __syncwarp();
            if (lane == 0) barrier_arrive(full + place);
        }
    } else {
        Output y = {factor, bias, residual, out, stride};
        int n = lane % 8;  // and the one 8 further
#pragma unroll 1
        for (int mine = 0, tile = blockIdx.x; tile < n_tiles; mine++, tile += gridDim.x) {
            int place = mine & (in_flight - 1);
            barrier_wait(full + place, (mine >> log_in_flight) & 1);
#pragma unroll 1
            for (int row = lane / 8; row < ROWS; row += 4) {
                const float* from = partials + place * tile_floats + row * 16 + n;
                Sum a(section), b(section);
#pragma unroll 2
                for (int p = 0; p < shape.n_parts; p++) {
                    a.add(from[p * ROWS * 16]);
                    b.add(from[p * ROWS * 16 + 8]);
                }
                y.finish(epilogue, row, tile * 16 + n, a.total(), b.total());
            }
            __syncwarp();
            if (lane == 0) barrier_arrive(empty + place);
        }
    }
}
