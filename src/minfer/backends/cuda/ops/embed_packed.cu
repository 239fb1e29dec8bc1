// Embedding from a table that is packed for a product, too: y[row] = scale * table[ids[row]].
//
// Shapes:  ids i32 [rows]; table [tile][block] of `lib/quant.cuh`, factors f32 [vocabulary] of its
//          rows; y f32 [rows][width].
// Who:     grid (rows, width / 1024), 4 warps: a lane a strip of 32 weights, a warp a quarter of
//          each. An id outside of the vocabulary (a padded row) gives a row of zeros.
// Floor:   rows * width * (4 + twice the bytes of a weight): microseconds at any size.
// Limits:  width a multiple of 8.
// Numerics: as `embed.cu`: the dequantizer's bits where packing was exact, times `scale` rounded
//          once.
// Macros:  TYPE, a type of `lib/quant.cuh`.
#include "lib/act.cuh"
#include "lib/quant_exact.cuh"

KERNEL __launch_bounds__(128)
embed_packed(const i32* ids, const u8* table, const float* factors, float* y, int vocabulary,
             int width, float scale) {
    using P = Packed<TYPE>;
    pdl_launch();
    pdl_wait();
    int row = blockIdx.x, part = blockIdx.y * WARP + threadIdx.x % WARP;
    int Q = threadIdx.x / WARP, column = part * 32 + Q * 8;
    if (column >= width) return;
    int id = ids[row];
    float x[8] = {};
    if (id >= 0 && id < vocabulary) {
        int n_blocks = (width + TYPE::BLOCK - 1) / TYPE::BLOCK, strip = part / 4;
        u64 block = (u64)(id / 16) * n_blocks + strip / P::STRIPS;
        Strip<TYPE> from(table + block * P::BYTES, strip % P::STRIPS, id % 8 * 4 + part % 4);
        switch (id / 8 % 2 * 4 + Q) {
            case 0: exact<0, 0>(from, x); break;
            case 1: exact<0, 1>(from, x); break;
            case 2: exact<0, 2>(from, x); break;
            case 3: exact<0, 3>(from, x); break;
            case 4: exact<1, 0>(from, x); break;
            case 5: exact<1, 1>(from, x); break;
            case 6: exact<1, 2>(from, x); break;
            default: exact<1, 3>(from, x);
        }
        float factor = factors[id] * (1.0f / (1 << ACT_SHIFT));
#pragma unroll
        for (int i = 0; i < 8; i++) x[i] = __fmul_rn(x[i] * factor, scale);
    }
    float4* out = (float4*)(y + (i64)row * width + column);
    out[0] = make_float4(x[0], x[1], x[2], x[3]);
    out[1] = make_float4(x[4], x[5], x[6], x[7]);
}
