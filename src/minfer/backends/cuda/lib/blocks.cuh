// One value of a block of each weight type, as the file has it: `value<T>(block, i)`. T is the
// GGUF id. Made for reading a few rows (embedding), not for matrix products: it decodes the scale
// for every value. Every product is rounded on its own, so the values equal the NumPy ones exactly.
#include "lib/base.cuh"

constexpr int T_F32 = 0, T_F16 = 1, T_Q4_0 = 2, T_Q4_1 = 3, T_Q5_0 = 6, T_Q5_1 = 7, T_Q8_0 = 8;
constexpr int T_Q2_K = 10, T_Q3_K = 11, T_Q4_K = 12, T_Q5_K = 13, T_Q6_K = 14;
constexpr int T_IQ4_NL = 20, T_IQ4_XS = 23, T_BF16 = 30, T_MXFP4 = 39;

__constant__ i8 IQ4_VALUES[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                  1,    13,   25,  38,  53,  69,  89,  113};
__constant__ i8 MXFP4_VALUES[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

DEVICE f16 half_at(const u8* p) { return *(const f16*)p; }
DEVICE float scale_at(const u8* p) { return f16_to_f32(half_at(p)); }
DEVICE u32 word_at(const u8* p) { return half_at(p) | ((u32)half_at(p + 2) << 16); }

// Nibble of value i in 16 bytes that hold values 0-15 in their low and 16-31 in their high halves.
DEVICE int nibble(const u8* quants, int i) { return (quants[i % 16] >> (i / 16 * 4)) & 15; }

// Scale and minimum number `sub` of the twelve bytes that hold eight 6-bit pairs (q4_K, q5_K).
DEVICE int scale6(const u8* s, int sub) {
    return sub < 4 ? s[sub] & 63 : (s[sub + 4] & 15) | (s[sub - 4] >> 6 << 4);
}
DEVICE int min6(const u8* s, int sub) {
    return sub < 4 ? s[sub + 4] & 63 : (s[sub + 4] >> 4) | (s[sub] >> 6 << 4);
}

DEVICE float affine(float scale, int q, float min) {
    return __fsub_rn(__fmul_rn(scale, (float)q), min);
}

template <int T>
struct Block {
    static constexpr int items = T == T_F32 || T == T_F16 || T == T_BF16 ? 1
                                 : T >= T_Q2_K && T <= T_Q6_K || T == T_IQ4_XS ? 256
                                                                                        : 32;
    static constexpr int bytes = T == T_F32      ? 4
                                 : T == T_F16    ? 2
                                 : T == T_BF16   ? 2
                                 : T == T_Q4_0   ? 18
                                 : T == T_Q4_1   ? 20
                                 : T == T_Q5_0   ? 22
                                 : T == T_Q5_1   ? 24
                                 : T == T_Q8_0   ? 34
                                 : T == T_Q2_K   ? 84
                                 : T == T_Q3_K   ? 110
                                 : T == T_Q4_K   ? 144
                                 : T == T_Q5_K   ? 176
                                 : T == T_Q6_K   ? 210
                                 : T == T_IQ4_NL ? 18
                                 : T == T_IQ4_XS ? 136
                                 : T == T_MXFP4  ? 17
                                                    : -1;
    static_assert(bytes > 0, "a weight type without a block");
};

// Value i of the block at b.
template <int T>
DEVICE float value(const u8* b, int i) {
    if constexpr (T == T_F32) return *(const float*)b;
    if constexpr (T == T_F16) return scale_at(b);
    if constexpr (T == T_BF16) return bf16_to_f32(half_at(b));
    if constexpr (T == T_Q4_0) return __fmul_rn(scale_at(b), (float)(nibble(b + 2, i) - 8));
    if constexpr (T == T_Q4_1) return affine(scale_at(b), nibble(b + 4, i), -scale_at(b + 2));
    if constexpr (T == T_Q5_0) {
        int q = nibble(b + 6, i) | ((word_at(b + 2) >> i) & 1) << 4;
        return __fmul_rn(scale_at(b), (float)(q - 16));
    }
    if constexpr (T == T_Q5_1) {
        int q = nibble(b + 8, i) | ((word_at(b + 4) >> i) & 1) << 4;
        return affine(scale_at(b), q, -scale_at(b + 2));
    }
    if constexpr (T == T_Q8_0) return __fmul_rn(scale_at(b), (float)(i8)b[2 + i]);
    if constexpr (T == T_IQ4_NL)
        return __fmul_rn(scale_at(b), (float)IQ4_VALUES[nibble(b + 2, i)]);
    if constexpr (T == T_MXFP4) {
        u32 e = b[0];  // half of 2^(e - 127), since the table holds doubled values
        float scale = __uint_as_float(e < 2 ? 0x00200000u << e : (e - 1) << 23);
        return __fmul_rn(scale, (float)MXFP4_VALUES[nibble(b + 1, i)]);
    }
    // superblocks of 256
    int l = i % 32, n = i / 128, shift = i % 128 / 32 * 2;
    if constexpr (T == T_Q2_K) {
        int s = b[i / 16], q = (b[16 + 32 * n + l] >> shift) & 3;
        float min = __fmul_rn(scale_at(b + 82), (float)(s >> 4));
        return affine(__fmul_rn(scale_at(b + 80), (float)(s & 15)), q, min);
    }
    if constexpr (T == T_Q3_K) {
        const u8* s = b + 96;
        int k = i / 16;
        int scale = (k < 8 ? s[k] & 15 : s[k - 8] >> 4) | ((s[8 + k % 4] >> (k / 4 * 2)) & 3) << 4;
        int q = ((b[32 + 32 * n + l] >> shift) & 3) - ((b[l] >> (i / 32)) & 1 ? 0 : 4);
        return __fmul_rn(__fmul_rn(scale_at(b + 108), (float)(scale - 32)), (float)q);
    }
    if constexpr (T == T_Q4_K || T == T_Q5_K) {
        const u8* quants = b + (T == T_Q4_K ? 16 : 48);
        int sub = i / 32;
        int q = (quants[i / 64 * 32 + l] >> (sub % 2 * 4)) & 15;
        if (T == T_Q5_K) q |= ((b[16 + l] >> sub) & 1) << 4;
        float min = __fmul_rn(scale_at(b + 2), (float)min6(b + 4, sub));
        return affine(__fmul_rn(scale_at(b), (float)scale6(b + 4, sub)), q, min);
    }
    if constexpr (T == T_Q6_K) {
        int k = i % 128 / 32;
        int low = (b[64 * n + l + k % 2 * 32] >> (k / 2 * 4)) & 15;
        int q = (low | ((b[128 + 32 * n + l] >> shift) & 3) << 4) - 32;
        float scale = __fmul_rn(scale_at(b + 208), (float)(i8)b[192 + i / 16]);
        return __fmul_rn(scale, (float)q);
    }
    if constexpr (T == T_IQ4_XS) {
        int sub = i / 32;
        int low = (b[4 + sub / 2] >> (sub % 2 * 4)) & 15;
        int scale = (low | ((half_at(b + 2) >> (sub * 2)) & 3) << 4) - 32;
        float d = __fmul_rn(scale_at(b), (float)scale);
        return __fmul_rn(d, (float)IQ4_VALUES[nibble(b + 8 + 16 * sub, i % 32)]);
    }
}
