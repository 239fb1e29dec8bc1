// y = x W^T for many rows on Hopper's warpgroup tensor cores.
//
// What: out[m][n] = factor[n] * sum_k x[m][k] W[n][k] (+ bias[n]) (+ residual[m][n]), or act(gate)
//   * up where W's rows are 8 of gate and 8 of up in turn.
// Layouts: x and W chunked halves (`lib/act.cuh`), x padded to whole tiles of 128 rows, W to n_rows
//   a multiple of 16; out f32 [m][stride], or, of a gated product with HALVES, chunked halves of
//   padded_m rows, for the product that reads them.
// Who: a block a multiprocessor, tiles of 128 x TILE_N in turn, those of the same weights side by
//   side. Thread 0 of the third warpgroup copies 64 of K at a time into a ring of STAGES; two
//   warpgroups multiply 64 x TILE_N each, and write from registers.
// Floor: 2 m n k operations at ~990 TFLOP/s dense; operands stream from L2.
// Limits: sm_90a; TILE_N one of 128, 192, 224, 256; of gated products, stride even, and a multiple
//   of 128 where out is halves. Rows that only pad x may be anything, and are not written.
// Numerics: f32 accumulators over ascending chunks of K.
// Versions: 1 (2026-11), with expansion and activations, 7B at 2048 rows: QKV 152 us, gate and up
//   1085, down 526. 2: descriptors made once, in uniform registers; outputs' factors fetched
//   together; quick quotients: gate and up alone 990 to 900 us. Clusters of two that share weights
//   gave QKV 200, down 663, in a build whose expansion had changed too: left out. 3: gate and up
//   write down's halves, half the bytes, and down has no pass before it: a prompt of 2048 takes 3 %
//   less.
// Macros: TILE_N, STAGES, EPILOGUE (`lib/epilogue.cuh`), HALVES (0/1).
#include "lib/epilogue.cuh"
#include "lib/pipeline.cuh"
#include "lib/wgmma.cuh"

#ifndef TILE_N
#define TILE_N 256
#define STAGES 4
#define EPILOGUE 0
#define HALVES 0
#endif

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
constexpr int TILE_M = 128, A_BYTES = TILE_M * 128, B_BYTES = TILE_N * 128;
constexpr int STAGE_BYTES = A_BYTES + B_BYTES;

KERNEL __launch_bounds__(384, 1)
matmul_gemm_sm90(const u8* x, const u8* w, const float* factor, const float* bias,
                 const float* residual, float* out, const int* counts, int padded_m, int n_rows,
                 int n_chunks, int stride) {
    extern __shared__ __align__(1024) u8 shared[];
    u8* stages = align_shared(shared);
    __shared__ u64 full[STAGES], empty[STAGES];
    int group = __shfl_sync(FULL_MASK, threadIdx.x / 128, 0);  // known to be the same in a warp
    pdl_launch();
    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; i++) {
            barrier_init(full + i, 1);
            barrier_init(empty + i, 2);
        }
        barrier_init_fence();
    }
    __syncthreads();
    pdl_wait();

    int m = counts[1];  // rows that are real
    int tiles_m = (m + TILE_M - 1) / TILE_M;
    int n_tiles = tiles_m * ((n_rows + TILE_N - 1) / TILE_N);

    if (group == 2) {
        set_registers_down<40>();
        if (threadIdx.x == 256) {
            int at = 0;
            u32 parity = 1;
            for (int tile = blockIdx.x; tile < n_tiles; tile += gridDim.x) {
                int row = tile % tiles_m * TILE_M;
                int column = tile / tiles_m * TILE_N;
                u32 w_bytes = min(TILE_N, n_rows - column) * 128;
                for (int c = 0; c < n_chunks; c++) {
                    barrier_wait(empty + at, parity);
                    barrier_expect(full + at, A_BYTES + w_bytes);
                    u8* to = stages + at * STAGE_BYTES;
                    bulk_copy(to, x + ((u64)c * padded_m + row) * 128, A_BYTES, full + at);
                    const u8* from = w + ((u64)c * n_rows + column) * 128;
                    bulk_copy(to + A_BYTES, from, w_bytes, full + at);
                    if (++at == STAGES) at = 0, parity ^= 1;
                }
            }
        }
    } else {
        set_registers_up<232>();
        int lane = threadIdx.x % WARP, g = lane / 4, t = lane % 4;
        u64 first_operand = operand(shared_address(stages));
        int at = 0;
        u32 parity = 0;
        float d[TILE_N / 2];
        Output y = {factor, bias, residual, out, stride};
        auto release = [&](int slot) {
            if (threadIdx.x % 128 == 0) barrier_arrive(empty + slot);
        };
        for (int tile = blockIdx.x; tile < n_tiles; tile += gridDim.x) {
            int row = tile % tiles_m * TILE_M + group * 64 + threadIdx.x % 128 / WARP * 16 + g;
            int column = tile / tiles_m * TILE_N;
            int previous = 0;
            for (int c = 0; c < n_chunks; c++) {
                barrier_wait(full + at, parity);
                u64 a = operand_at(first_operand, at * STAGE_BYTES + group * 64 * 128);
                u64 b = operand_at(first_operand, at * STAGE_BYTES + A_BYTES);
                wgmma_fence();
#pragma unroll
                for (int i = 0; i < 4; i++)
                    Wgmma<TILE_N>::run(d, operand_at(a, i * 32), operand_at(b, i * 32),
                                       c + i != 0);
                wgmma_commit();
                wgmma_wait<1>();  // the chunk before is done with its slot
                if (c) release(previous);
                previous = at;
                if (++at == STAGES) at = 0, parity ^= 1;
            }
            wgmma_wait<0>();
            settle_sums(d);
            release(previous);

#if HALVES
            write_halves<EPILOGUE>(y, d, row, column + t * 2, m, padded_m);
#else
            write_sums<EPILOGUE>(y, d, row, column + t * 2, m);
#endif
        }
    }
}
#endif
