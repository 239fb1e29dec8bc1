// Makes the operands of the many-rows product: halves in the chunked layout of `lib/act.cuh`.
//
// What: matmul_expand writes the f16 values of a packed weight (normalised rows), matmul_act those
//   of f32 activations times 2^-ACT_SHIFT, normed on the way where they have to be.
// Layouts: packed [tile][block] -> chunked rows first_row.. of n_rows; x f32 [rows][K] -> chunked.
// Who: expand: a warp a strip of 16 rows x 128 weights. act: a thread 8 values.
// Floor: bytes. expand of gate and up of a 7B layer, q4_K: 76 MB read, 272 MB written, 77 us.
// Limits: K a multiple of 8, of 256 for types with blocks of 256.
// Numerics: each value rounded once to half (q2_K, q4_K, q5_K: scale and minimum too).
// Versions: 1 (2026-11).
#include "lib/act.cuh"
#include "lib/quant.cuh"

#ifndef TYPE
#define TYPE Q4_K
#endif

template <int Q, class F>
DEVICE void expand_quarter(const Strip<F>& from, u8* out, int row, int n_rows, int strip, int t) {
    u32 v[2][4];
    from.template expand<Q>(v);
#pragma unroll
    for (int h = 0; h < 2; h++)
        *(uint4*)(out + chunked_offset(row + h * 8, n_rows, strip, Q, t)) = {v[h][0], v[h][1],
                                                                             v[h][2], v[h][3]};
}

KERNEL __launch_bounds__(256)
matmul_expand(const u8* w, u8* out, int n_tiles, int n_blocks, int first_row, int n_rows) {
    using P = Packed<TYPE>;
    pdl_launch();
    pdl_wait();
    int lane = threadIdx.x % WARP, g = lane / 4, t = lane % 4;
    int strips = n_blocks * P::STRIPS;  // K / 128, whatever the type
    int index = blockIdx.x * 8 + threadIdx.x / WARP;
    if (index >= n_tiles * strips) return;
    int tile = index / strips, strip = index % strips;
    Strip<TYPE> from(w + ((u64)tile * n_blocks + strip / P::STRIPS) * P::BYTES, strip % P::STRIPS,
                     lane);
    int row = first_row + tile * 16 + g;
    expand_quarter<0>(from, out, row, n_rows, strip, t);
    expand_quarter<1>(from, out, row, n_rows, strip, t);
    expand_quarter<2>(from, out, row, n_rows, strip, t);
    expand_quarter<3>(from, out, row, n_rows, strip, t);
}

// A thread 8 values; with `norm`, a block a whole row, which is normed first.
KERNEL __launch_bounds__(256)
matmul_act(const float* x, const float* norm, u8* out, int n_rows, int padded_rows, int k,
           int n_strips, float eps) {
    __shared__ float scratch[256 / WARP];
    pdl_launch();
    pdl_wait();
    int row = blockIdx.y, n_vectors = n_strips * 16;
    const float* from = x + (u64)row * k;
    float scale = 1.0f;
    if (norm && row < n_rows) {
        float squares = 0.0f;
        for (int i = threadIdx.x; i < k / 4; i += 256) {
            float4 v = ((const float4*)from)[i];
            squares += v.x * v.x + v.y * v.y + v.z * v.z + v.w * v.w;
        }
        scale = rsqrtf(block_sum<256>(squares, scratch) / k + eps);
    }
    for (int i = blockIdx.x * 256 + threadIdx.x; i < n_vectors; i += gridDim.x * 256) {
        uint4 h = {0, 0, 0, 0};
        if (i * 8 < k && row < n_rows) {
            float4 a = ((const float4*)from)[2 * i], b = ((const float4*)from)[2 * i + 1];
            if (norm) {
                float4 p = ((const float4*)norm)[2 * i], q = ((const float4*)norm)[2 * i + 1];
                a.x *= scale * p.x, a.y *= scale * p.y, a.z *= scale * p.z, a.w *= scale * p.w;
                b.x *= scale * q.x, b.y *= scale * q.y, b.z *= scale * q.z, b.w *= scale * q.w;
            }
            h = {pack_act(a.x, a.y), pack_act(a.z, a.w), pack_act(b.x, b.y), pack_act(b.z, b.w)};
        }
        *(uint4*)(out + chunked_offset(row, padded_rows, i / 16, i & 3, i >> 2 & 3)) = h;
    }
}
