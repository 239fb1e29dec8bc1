// Pieces of cached keys and values on their way to the tensor cores: fetched early as they lie,
// made halves when they are used. Macros of the kernel: HD, KV.
#include "lib/attention.cuh"

constexpr bool PRECISE = KV == KV_F32;  // a value is the sum of two halves

// Up to 8 cached values as they lie in memory.
struct Raw {
    u32 word[KV == KV_F32 ? 8 : KV == KV_F16 ? 4 : 2];
    f16 scale;
};

// The same as halves, and what rounding left of them where PRECISE.
struct Values {
    u32 high[4], low[4];
};

// A place in a plane from which a lane reads pieces at constant distances: the keys that are a
// multiple of 8 further, and the features a multiple of 64 (where rows are plain, of anything).
struct Source {
    const u8* values;
    const f16* scales;

    DEVICE Source(const u8* plane, const f16* plane_scales, i64 block, int key, int d) {
        i64 first = block * PAGE * HD;
        values = keep(plane + (first + value_at<HD, KV>(key, d)) * value_bytes(KV));
        if (KV == KV_Q8_0)
            scales = keep(plane_scales + first / scale_group(HD) + scale_at<HD>(key, d));
    }

    // Fetch N values; zeros unless valid. Past the first-level cache, which may hold what a key's
    // place held before it was stored.
    template <int N>
    DEVICE void fetch(Raw& r, int keys, int features, bool valid) const {
        constexpr int WORDS = KV == KV_F32 ? N : KV == KV_F16 ? N / 2 : (N + 3) / 4;
#pragma unroll
        for (int i = 0; i < WORDS; i++) r.word[i] = 0;
        r.scale = 0;
        if (!valid) return;
        const u8* p = values + value_at<HD, KV>(keys, features) * value_bytes(KV);
        if constexpr (WORDS >= 4) {
#pragma unroll
            for (int i = 0; i < WORDS; i += 4) {
                uint4 w = __ldcg((const uint4*)(p + 4 * i));
                r.word[i] = w.x, r.word[i + 1] = w.y, r.word[i + 2] = w.z, r.word[i + 3] = w.w;
            }
        } else if constexpr (WORDS == 2) {
            uint2 w = __ldcg((const uint2*)p);
            r.word[0] = w.x, r.word[1] = w.y;
        } else if constexpr (KV == KV_Q8_0 && N == 2) {
            r.word[0] = __ldcg((const u16*)p);
        } else {
            r.word[0] = __ldcg((const u32*)p);
        }
        if (KV == KV_Q8_0) r.scale = __ldcg(scales + scale_at<HD>(keys, features));
    }
};

// The same of a head that `pack_head` left in shared memory.
template <int N>
DEVICE void take(Raw& r, const float* packed, int d) {
    const u8* p = (const u8*)packed + d * value_bytes(KV);
    if constexpr (KV == KV_Q8_0 && N == 2)
        r.word[0] = *(const u16*)p;
    else
#pragma unroll
        for (int i = 0; i < N * value_bytes(KV) / 4; i++) r.word[i] = ((const u32*)p)[i];
    if (KV == KV_Q8_0) r.scale = ((const f16*)((const u8*)packed + HD))[d / scale_group(HD)];
}

// Values 2 * pair and the next.
DEVICE void expand_pair(const Raw& r, int pair, u32& high, u32& low) {
    if constexpr (KV == KV_F16) {
        high = r.word[pair];
    } else if constexpr (KV == KV_Q8_0) {
        high = bytes_to_f16(r.word[pair / 2], pair % 2, join_f16(r.scale, r.scale));
    } else {
        float a = __uint_as_float(r.word[2 * pair]), b = __uint_as_float(r.word[2 * pair + 1]);
        high = pack_f16(a, b);
        low = pack_f16(a - low_f32(high), b - high_f32(high));
    }
}

template <int N>
DEVICE Values expand(const Raw& r) {
    Values v;
#pragma unroll
    for (int i = 0; i < N / 2; i++) expand_pair(r, i, v.high[i], v.low[i]);
    return v;
}
