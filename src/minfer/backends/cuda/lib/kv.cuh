// The KV cache in device memory (layout: `kv.py`): where a head's key is, and writing one.
// A cache type is a number: 0 f32, 1 f16, 2 q8_0. Template parameters are short, since kernels call
// their macros HD and KV.
#include "lib/base.cuh"

constexpr int PAGE = 64;
constexpr int KV_F32 = 0, KV_F16 = 1, KV_Q8_0 = 2;

DEVICE constexpr int value_bytes(int kv) { return kv == KV_F32 ? 4 : kv == KV_F16 ? 2 : 1; }
DEVICE constexpr int scale_group(int hd) { return hd % 32 == 0 ? 32 : 16; }

// Index of a head's row among all [page][kv_head][PAGE] rows of a plane.
DEVICE i64 kv_row(int cell, int kv_head, int n_kv_heads) {
    return ((i64)(cell / PAGE) * n_kv_heads + kv_head) * PAGE + cell % PAGE;
}

// Write a head of D floats in shared memory to row `row` of a plane (and its scales). Called by a
// whole warp.
template <int D, int K>
DEVICE void store_head(const float* head, u8* plane, f16* scales, i64 row) {
    int lane = threadIdx.x % WARP;
    if constexpr (K == KV_F32) {
        for (int e = lane; e < D; e += WARP) ((float*)plane)[row * D + e] = head[e];
    } else if constexpr (K == KV_F16) {
        for (int e = lane; e < D / 2; e += WARP)
            ((f16x2*)plane)[row * (D / 2) + e] = pack_f16(head[2 * e], head[2 * e + 1]);
    } else {
        constexpr int GROUP = scale_group(D), LANES = GROUP / 4;  // a lane quantizes 4 values
        for (int first = 0; first < D; first += 4 * WARP) {
            int e = first + 4 * lane;
            float x[4], top = 0.0f;
#pragma unroll
            for (int i = 0; i < 4; i++) {
                x[i] = e < D ? head[e + i] : 0.0f;
                top = fmaxf(top, fabsf(x[i]));
            }
#pragma unroll
            for (int offset = LANES / 2; offset; offset /= 2)
                top = fmaxf(top, __shfl_xor_sync(FULL_MASK, top, offset));
            if (e < D) {
                float d = __fdiv_rn(top, 127.0f);
                float inverse = d > 0.0f ? __fdiv_rn(1.0f, d) : 0.0f;
                u32 packed = 0;
#pragma unroll
                for (int i = 0; i < 4; i++)
                    packed |= (u32)(u8)(i8)__float2int_rn(__fmul_rn(x[i], inverse)) << (8 * i);
                ((u32*)plane)[(row * D + e) / 4] = packed;
                if (lane % LANES == 0) scales[row * (D / GROUP) + e / GROUP] = f32_to_f16(d);
            }
        }
    }
}
