// Blocks of weights as a GGUF file has them, read value by value: for repacking, not for speed.
//
// Gguf<F> of a type F of `quant.cuh` says, of one block in memory (any alignment):
//   ITEMS, BYTES         values and bytes a block
//   code(b, i)           the integer of value i, biased to be unsigned: value 0 is F::ZERO
//   scale(b, group)      what a code is multiplied by, in groups of F::GROUP values
//   minimum(b, group)    what is added after that (types without: 0)
// and for types whose scales are steps of a block's d:
//   step(b, group), d(b), min_step(b, group), dmin(b)    steps of STEP types biased by 128
// Plain types have value(b) instead. The meanings are those of ggml.
#include "lib/quant.cuh"

DEVICE u32 word16(const u8* p) { return p[0] | p[1] << 8; }
DEVICE float half_at(const u8* p) { return f16_to_f32((f16)word16(p)); }

template <class F>
struct Gguf;

// ---- plain --------------------------------------------------------------------------------------
template <>
struct Gguf<F16> {
    static constexpr int ITEMS = 1, BYTES = 2;
    DEVICE static float value(const u8* b) { return half_at(b); }
};
template <>
struct Gguf<BF16> {
    static constexpr int ITEMS = 1, BYTES = 2;
    DEVICE static float value(const u8* b) { return bf16_to_f32((bf16)word16(b)); }
};
template <>
struct Gguf<F32> {
    static constexpr int ITEMS = 1, BYTES = 4;
    DEVICE static float value(const u8* b) {
        return __uint_as_float(word16(b) | word16(b + 2) << 16);
    }
};

// ---- 32 values: d:2 [m:2] [fifth bits:4] nibbles:16 ---------------------------------------------
template <int MIN, int FIFTH>
struct Legacy32 {
    static constexpr int ITEMS = 32, HIGH = 2 + 2 * MIN, LOW = HIGH + 4 * FIFTH, BYTES = LOW + 16;
    DEVICE static u32 code(const u8* b, int i) {
        u32 nibble = b[LOW + i % 16] >> (i / 16 * 4) & 15;
        return FIFTH ? nibble | (b[HIGH + i / 8] >> (i % 8) & 1) << 4 : nibble;
    }
    DEVICE static float scale(const u8* b, int) { return half_at(b); }
    DEVICE static float minimum(const u8* b, int) { return MIN ? half_at(b + 2) : 0.0f; }
};
template <> struct Gguf<Q4_0> : Legacy32<0, 0> {};
template <> struct Gguf<Q4_1> : Legacy32<1, 0> {};
template <> struct Gguf<Q5_0> : Legacy32<0, 1> {};
template <> struct Gguf<Q5_1> : Legacy32<1, 1> {};
template <> struct Gguf<IQ4_NL> : Legacy32<0, 0> {};

template <>
struct Gguf<Q8_0> {
    static constexpr int ITEMS = 32, BYTES = 34;
    DEVICE static u32 code(const u8* b, int i) { return b[2 + i] ^ 0x80; }
    DEVICE static float scale(const u8* b, int) { return half_at(b); }
    DEVICE static float minimum(const u8*, int) { return 0.0f; }
};

template <>
struct Gguf<MXFP4> {  // exponent:1 nibbles:16
    static constexpr int ITEMS = 32, BYTES = 17;
    DEVICE static u32 code(const u8* b, int i) { return b[1 + i % 16] >> (i / 16 * 4) & 15; }
    DEVICE static float scale(const u8* b, int) {  // 2^(e - 128)
        u32 e = b[0];
        return __uint_as_float(e < 2 ? 0x00200000u << e : (e - 1) << 23);
    }
    DEVICE static float minimum(const u8*, int) { return 0.0f; }
};

// ---- 256 values ---------------------------------------------------------------------------------
// Six-bit steps of q4_K and q5_K, from 12 bytes: low four scales, low four minima, the rest.
DEVICE u32 six_bits(const u8* p, int group, bool min) {
    if (group < 4) return p[group + 4 * min] & 63;
    u32 low = p[group + 4];
    return (min ? low >> 4 : low & 15) | (p[group - 4 + 4 * min] >> 6) << 4;
}

template <int FIFTH>
struct K45 {  // d:2 dmin:2 steps:12 [fifth bits:32] nibbles:128
    static constexpr int ITEMS = 256, LOW = 16 + 32 * FIFTH, BYTES = LOW + 128;
    DEVICE static u32 code(const u8* b, int i) {
        u32 nibble = b[LOW + i / 64 * 32 + i % 32] >> (i / 32 % 2 * 4) & 15;
        return FIFTH ? nibble | (b[16 + i % 32] >> (i / 32) & 1) << 4 : nibble;
    }
    DEVICE static u32 step(const u8* b, int group) { return six_bits(b + 4, group, false); }
    DEVICE static u32 min_step(const u8* b, int group) { return six_bits(b + 4, group, true); }
    DEVICE static float d(const u8* b) { return half_at(b); }
    DEVICE static float dmin(const u8* b) { return half_at(b + 2); }
    DEVICE static float scale(const u8* b, int g) { return d(b) * (float)step(b, g); }
    DEVICE static float minimum(const u8* b, int g) { return -dmin(b) * (float)min_step(b, g); }
};
template <> struct Gguf<Q4_K> : K45<0> {};
template <> struct Gguf<Q5_K> : K45<1> {};

template <>
struct Gguf<Q2_K> {  // steps:16 crumbs:64 d:2 dmin:2
    static constexpr int ITEMS = 256, BYTES = 84;
    DEVICE static u32 code(const u8* b, int i) {
        return b[16 + i / 128 * 32 + i % 32] >> (i / 32 % 4 * 2) & 3;
    }
    DEVICE static u32 step(const u8* b, int group) { return b[group] & 15; }
    DEVICE static u32 min_step(const u8* b, int group) { return b[group] >> 4; }
    DEVICE static float d(const u8* b) { return half_at(b + 80); }
    DEVICE static float dmin(const u8* b) { return half_at(b + 82); }
    DEVICE static float scale(const u8* b, int g) { return d(b) * (float)step(b, g); }
    DEVICE static float minimum(const u8* b, int g) { return -dmin(b) * (float)min_step(b, g); }
};

template <>
struct Gguf<Q3_K> {  // high bits:32 crumbs:64 steps:12 d:2
    static constexpr int ITEMS = 256, BYTES = 110;
    DEVICE static u32 code(const u8* b, int i) {
        u32 low = b[32 + i / 128 * 32 + i % 32] >> (i / 32 % 4 * 2) & 3;
        return low | (b[i % 32] >> (i / 32) & 1) << 2;
    }
    DEVICE static u32 step(const u8* b, int group) {  // six bits less 32, plus the bias of 128
        u32 low = b[96 + group % 8] >> (group / 8 * 4) & 15;
        u32 high = b[104 + group % 4] >> (group / 4 * 2) & 3;
        return (low | high << 4) + 96;
    }
    DEVICE static float d(const u8* b) { return half_at(b + 108); }
    DEVICE static float scale(const u8* b, int g) { return d(b) * ((float)step(b, g) - 128.0f); }
    DEVICE static float minimum(const u8*, int) { return 0.0f; }
};

template <>
struct Gguf<Q6_K> {  // nibbles:128 high crumbs:64 steps:16 d:2
    static constexpr int ITEMS = 256, BYTES = 210;
    DEVICE static u32 code(const u8* b, int i) {
        u32 low = b[i / 128 * 64 + i % 64] >> (i / 64 % 2 * 4) & 15;
        return low | (b[128 + i / 128 * 32 + i % 32] >> (i / 32 % 4 * 2) & 3) << 4;
    }
    DEVICE static u32 step(const u8* b, int group) { return b[192 + group] ^ 0x80; }
    DEVICE static float d(const u8* b) { return half_at(b + 208); }
    DEVICE static float scale(const u8* b, int g) { return d(b) * ((float)step(b, g) - 128.0f); }
    DEVICE static float minimum(const u8*, int) { return 0.0f; }
};

template <>
struct Gguf<IQ4_XS> {  // d:2 high bits of steps:2 low nibbles:4 nibbles:128
    static constexpr int ITEMS = 256, BYTES = 136;
    DEVICE static u32 code(const u8* b, int i) {
        return b[8 + i / 32 * 16 + i % 16] >> (i / 16 % 2 * 4) & 15;
    }
    DEVICE static u32 step(const u8* b, int group) {
        u32 low = b[4 + group / 2] >> (group % 2 * 4) & 15;
        return (low | (word16(b + 2) >> (2 * group) & 3) << 4) + 96;
    }
    DEVICE static float d(const u8* b) { return half_at(b); }
    DEVICE static float scale(const u8* b, int g) { return d(b) * ((float)step(b, g) - 128.0f); }
    DEVICE static float minimum(const u8*, int) { return 0.0f; }
};
