// y = x W^T for the rows of prompts on warp-level tensor cores: every card but Hopper.
//
// What: as `matmul_vec.cu`.
// Layouts: x and W chunked halves (`lib/act.cuh`), x padded to whole tiles of 128 rows, W to n_rows
//   a multiple of 16; out f32 [m][stride], or, of a gated product with HALVES, chunked halves of
//   padded_m rows, for the product that reads them.
// Who: a block of 8 warps a tile of 128 x 128, warps 2 x 4, 64 x 32 each; cp.async fills a ring of
//   STAGES slots of 64 of K. Tiles of the same weights are neighbours.
// Floor: 2 m n k operations at the rate of mma.sync; operands stream from L2.
// Limits: of gated products, stride even, and a multiple of 128 where out is halves. Rows that only
//   pad x may be anything, and are not written.
// Numerics: f32 accumulators over ascending chunks of K.
// Versions: 1 (2026-11).
// Macros: STAGES, EPILOGUE (`lib/epilogue.cuh`), HALVES (0/1).
#include "lib/epilogue.cuh"
#include "lib/mma.cuh"
#include "lib/pipeline.cuh"

#ifndef EPILOGUE
#define EPILOGUE 0
#define HALVES 0
#define STAGES 3
#endif

constexpr int TILE = 128, HALF_BYTES = TILE * 128, STAGE_BYTES = 2 * HALF_BYTES;

KERNEL __launch_bounds__(256)
matmul_gemm(const u8* x, const u8* w, const float* factor, const float* bias, const float* residual,
            float* out, const int* counts, int padded_m, int n_rows, int n_chunks, int stride) {
    extern __shared__ __align__(128) u8 stages[];
    int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    int tiles_m = padded_m / TILE;
    int row = blockIdx.x % tiles_m * TILE, column = blockIdx.x / tiles_m * TILE;
    pdl_launch();
    pdl_wait();
    int m = counts[1];  // rows that are real
    if (row >= m) return;

    auto issue = [&](int chunk) {
        u8* to = stages + chunk % STAGES * STAGE_BYTES;
        if (chunk < n_chunks) {
            const u8* a = x + ((u64)chunk * padded_m + row) * 128;
            const u8* b = w + ((u64)chunk * n_rows + column) * 128;
            int limit = (n_rows - column) * 128;
#pragma unroll
            for (int i = 0; i < HALF_BYTES / 16 / 256; i++) {
                int at = (i * 256 + threadIdx.x) * 16;
                copy16_async(to + at, a + at);
                copy16_async(to + HALF_BYTES + at, b + min(at, limit - 16), at < limit ? 16 : 0);
            }
        }
        copy_commit();
    };
#pragma unroll
    for (int i = 0; i < STAGES - 1; i++) issue(i);

    int m0 = warp / 4 * 64, n0 = warp % 4 * 32;
    int a_row = m0 + lane % 16, a_rank = lane / 16;
    int b_row = n0 + lane / 16 * 8 + lane % 8, b_rank = lane / 8 % 2;
    float acc[4][16] = {};
    for (int c = 0; c < n_chunks; c++) {
        copy_wait<STAGES - 2>();
        __syncthreads();
        issue(c + STAGES - 1);
        u32 a = shared_address(stages + c % STAGES * STAGE_BYTES), b = a + HALF_BYTES;
#pragma unroll
        for (int k = 0; k < 4; k++) {
            u32 wa[4][4], wb[2][4];
#pragma unroll
            for (int i = 0; i < 4; i++)
                load_matrix4(wa[i], a + (a_row + i * 16) * 128 +
                                        (((k * 2 + a_rank) ^ (a_row & 7)) * 16));
#pragma unroll
            for (int j = 0; j < 2; j++)
                load_matrix4(wb[j], b + (b_row + j * 16) * 128 +
                                        (((k * 2 + b_rank) ^ (b_row & 7)) * 16));
#pragma unroll
            for (int i = 0; i < 4; i++)
#pragma unroll
                for (int j = 0; j < 4; j++)
                    mma_f16(*(float(*)[4])(acc[i] + 4 * j), wa[i][0], wa[i][1], wa[i][2],
                            wa[i][3], wb[j / 2][j % 2 * 2], wb[j / 2][j % 2 * 2 + 1]);
        }
    }

    Output y = {factor, bias, residual, out, stride};
#pragma unroll
    for (int i = 0; i < 4; i++) {
        int first_row = row + m0 + i * 16 + lane / 4, first_column = column + n0 + lane % 4 * 2;
#if HALVES
        write_halves<EPILOGUE>(y, acc[i], first_row, first_column, m, padded_m);
#else
        write_sums<EPILOGUE>(y, acc[i], first_row, first_column, m);
#endif
    }
}
