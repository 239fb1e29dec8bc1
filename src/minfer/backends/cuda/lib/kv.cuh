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

// Features that lie side by side. Halves of heads that are a multiple of 64 lie as Hopper's matrix
// units read them: bands of 64 features, [band][key][64], the eight 16-byte pieces of a row
// exchanged by the key's number (128-byte swizzle). All else is [key][D].
template <int D, int K>
DEVICE constexpr int band_width() {
    return K != KV_F16 || D % 64 ? D : 64;
}

// Where feature d of a key is within its block, in values.
template <int D, int K>
DEVICE constexpr int value_at(int key, int d) {
    if (K != KV_F16 || D % 64) return key * D + d;
    return (d / 64 * PAGE + key) * 64 + ((d / 8 ^ key) & 7) * 8 + d % 8;
}

// Where the scale of feature d is within its block, in halves.
template <int D>
DEVICE constexpr int scale_at(int key, int d) {
    return (key * D + d) / scale_group(D);
}

DEVICE constexpr int value_bytes(int k) { return k == KV_F32 ? 4 : k == KV_F16 ? 2 : 1; }

// Make a head of D floats in shared memory what it is in the cache: its values in one piece, then
// their scales. Called by a whole warp, which then sees the result.
template <int D, int K>
DEVICE void pack_head(float* head) {
    int lane = threadIdx.x % WARP;
    if constexpr (K == KV_F16) {
        constexpr int N = (D / 2 + WARP - 1) / WARP;
        f16x2 x[N];
#pragma unroll
        for (int i = 0; i < N; i++) {
            int e = 2 * (i * WARP + lane);
            if (e < D) x[i] = pack_f16(head[e], head[e + 1]);
        }
        __syncwarp();
#pragma unroll
        for (int i = 0; i < N; i++)
            if (2 * (i * WARP + lane) < D) ((f16x2*)head)[i * WARP + lane] = x[i];
    } else if constexpr (K == KV_Q8_0) {
        constexpr int N = (D / 4 + WARP - 1) / WARP;  // a lane quantizes 4 values
        constexpr int lanes = scale_group(D) / 4;
        u32 packed[N];
        float d[N];
#pragma unroll
        for (int n = 0; n < N; n++) {
            int e = 4 * (n * WARP + lane);
            float x[4], top = 0.0f;
#pragma unroll
            for (int i = 0; i < 4; i++) {
                x[i] = e < D ? head[e + i] : 0.0f;
                top = fmaxf(top, fabsf(x[i]));
            }
#pragma unroll
            for (int offset = lanes / 2; offset; offset /= 2)
                top = fmaxf(top, __shfl_xor_sync(FULL_MASK, top, offset));
            d[n] = __fdiv_rn(top, 127.0f);
            float inverse = d[n] > 0.0f ? __fdiv_rn(1.0f, d[n]) : 0.0f;
            packed[n] = 0;
#pragma unroll
            for (int i = 0; i < 4; i++)
                packed[n] |= (u32)(u8)(i8)__float2int_rn(__fmul_rn(x[i], inverse)) << (8 * i);
        }
        __syncwarp();
        f16* scales = (f16*)((u8*)head + D);
#pragma unroll
        for (int n = 0; n < N; n++) {
            int e = n * WARP + lane;
            if (4 * e >= D) continue;
            ((u32*)head)[e] = packed[n];
            if (lane % lanes == 0) scales[e / lanes] = f32_to_f16(d[n]);
        }
    }
    __syncwarp();
}

// Pack a head of D floats in shared memory, and write it as key `key` of block `block` of a plane
// (and its scales). Called by a whole warp.
template <int D, int K>
DEVICE void store_head(float* head, u8* plane, f16* scales, i64 block, int key) {
    constexpr int BYTES = value_bytes(K), PIECE = 16 / BYTES;
    int lane = threadIdx.x % WARP;
    i64 base = block * PAGE * D;
    pack_head<D, K>(head);
    for (int e = PIECE * lane; e < D; e += PIECE * WARP)
        *(uint4*)(plane + (base + value_at<D, K>(key, e)) * BYTES) =
            *(const uint4*)((const u8*)head + e * BYTES);
    if (K == KV_Q8_0 && lane < D / scale_group(D))
        scales[base / scale_group(D) + scale_at<D>(key, 0) + lane] =
            ((const f16*)((const u8*)head + D))[lane];
}
