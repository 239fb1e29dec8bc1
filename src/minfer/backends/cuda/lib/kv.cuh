// The KV cache in device memory (layout: `kv.py`): where a head's key is, and writing one.
//
// K and V are planes of blocks, one a (page, kv head), of PAGE keys. A cache type is a number: 0
// f32, 1 f16, 2 q8_0. Names are short and lower-case here, since kernels have macros such as HD,
// KV, GROUP.
#include "lib/base.cuh"

constexpr int PAGE = 64;
constexpr int KV_F32 = 0, KV_F16 = 1, KV_Q8_0 = 2;

// The planes of a state.
struct Planes {
    u8 *k, *v;
    f16 *k_scales, *v_scales;
};

DEVICE constexpr int scale_group(int hd) { return hd % 32 == 0 ? 32 : 16; }

DEVICE i64 kv_block(int page, int kv_head, int n_kv_heads) {
    return (i64)page * n_kv_heads + kv_head;
}

// Where feature d of a key is within its block, in values. Halves of heads that are a multiple of
// 64 lie as Hopper's matrix units read them: bands of 64 features, [band][key][64], the eight
// 16-byte pieces of a row exchanged by the key's number (128-byte swizzle). All else is [key][D].
template <int D, int K>
DEVICE constexpr int value_at(int key, int d) {
    if (K != KV_F16 || D % 64) return key * D + d;
    return (d / 64 * PAGE + key) * 64 + ((d / 8 % 8) ^ (key % 8)) * 8 + d % 8;
}

// Where the scale of feature d is within its block, in halves.
template <int D>
DEVICE constexpr int scale_at(int key, int d) {
    return (key * D + d) / scale_group(D);
}

// Write a head of D floats in shared memory as key `key` of block `block` of a plane (and its
// scales). Called by a whole warp.
template <int D, int K>
DEVICE void store_head(const float* head, u8* plane, f16* scales, i64 block, int key) {
    int lane = threadIdx.x % WARP;
    i64 base = block * PAGE * D;
    if constexpr (K == KV_F32) {
        for (int e = lane; e < D; e += WARP) ((float*)plane)[base + key * D + e] = head[e];
    } else if constexpr (K == KV_F16) {
        for (int e = 2 * lane; e < D; e += 2 * WARP)
            *(f16x2*)((f16*)plane + base + value_at<D, K>(key, e)) = pack_f16(head[e], head[e + 1]);
    } else {
        constexpr int group = scale_group(D), lanes = group / 4;  // a lane quantizes 4 values
        for (int first = 0; first < D; first += 4 * WARP) {
            int e = first + 4 * lane;
            float x[4], top = 0.0f;
#pragma unroll
            for (int i = 0; i < 4; i++) {
                x[i] = e < D ? head[e + i] : 0.0f;
                top = fmaxf(top, fabsf(x[i]));
            }
#pragma unroll
            for (int offset = lanes / 2; offset; offset /= 2)
                top = fmaxf(top, __shfl_xor_sync(FULL_MASK, top, offset));
            if (e < D) {
                float d = __fdiv_rn(top, 127.0f);
                float inverse = d > 0.0f ? __fdiv_rn(1.0f, d) : 0.0f;
                u32 packed = 0;
#pragma unroll
                for (int i = 0; i < 4; i++)
                    packed |= (u32)(u8)(i8)__float2int_rn(__fmul_rn(x[i], inverse)) << (8 * i);
                *(u32*)(plane + base + key * D + e) = packed;
                if (lane % lanes == 0) scales[base / group + scale_at<D>(key, e)] = f32_to_f16(d);
            }
        }
    }
}
