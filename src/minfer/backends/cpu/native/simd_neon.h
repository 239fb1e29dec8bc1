// simd.h for ARM NEON (AArch64) with the dot-product extension.
#pragma once

#include <arm_neon.h>

#include <cstdint>
#include <cstring>

namespace minfer::neon {

#define MINFER_FN [[gnu::always_inline]] inline

inline constexpr int kWidth = 4;

// The compiler's own vector types: arrays of them stay in registers, arithmetic is built in.
using vf = float32x4_t;
using vi = int32x4_t;
using vb = uint8x16_t;
using vmask = uint32x4_t;

MINFER_FN vf load(const float* p) { return vld1q_f32(p); }
MINFER_FN void store(float* p, vf a) { vst1q_f32(p, a); }
MINFER_FN vf load_n(const float* p, int n) {
    float a[4] = {};
    std::memcpy(a, p, size_t(n) * 4);
    return load(a);
}
MINFER_FN void store_n(float* p, vf x, int n) {
    float a[4];
    store(a, x);
    std::memcpy(p, a, size_t(n) * 4);
}
MINFER_FN vf set1(float x) { return vdupq_n_f32(x); }
MINFER_FN vi iset1(int32_t x) { return vdupq_n_s32(x); }
MINFER_FN vf fma(vf a, vf b, vf c) { return vfmaq_f32(c, a, b); }
MINFER_FN vf min(vf a, vf b) { return vminq_f32(a, b); }
MINFER_FN vf max(vf a, vf b) { return vmaxq_f32(a, b); }
MINFER_FN vf abs_(vf a) { return vabsq_f32(a); }
MINFER_FN vf sqrt_(vf a) { return vsqrtq_f32(a); }
MINFER_FN float sum(vf a) { return vaddvq_f32(a); }
MINFER_FN float hmax(vf a) { return vmaxvq_f32(a); }
MINFER_FN int32_t sum(vi a) { return vaddvq_s32(a); }

MINFER_FN vf load_f16(const uint16_t* p) {
    return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p)));
}
MINFER_FN void store_f16(uint16_t* p, vf a) {
    vst1_u16(p, vreinterpret_u16_f16(vcvt_f16_f32(a)));
}
MINFER_FN vf load_bf16(const uint16_t* p) {
    return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(p), 16));
}
MINFER_FN void store_bf16(uint16_t* p, vf a) {
    const uint32x4_t bits = vreinterpretq_u32_f32(a);
    const uint32x4_t odd = vandq_u32(vshrq_n_u32(bits, 16), vdupq_n_u32(1));
    vst1_u16(p, vshrn_n_u32(vaddq_u32(bits, vaddq_u32(odd, vdupq_n_u32(0x7fff))), 16));
}

MINFER_FN vf to_float(vi a) { return vcvtq_f32_s32(a); }
MINFER_FN vi to_int(vf a) { return vcvtnq_s32_f32(a); }
template <int N>
MINFER_FN vi shift_right(vi a) {
    return vshrq_n_s32(a, N);
}
template <int N>
MINFER_FN vi shift_left(vi a) {
    return vshlq_n_s32(a, N);
}
MINFER_FN vmask less(vf a, vf b) { return vcltq_f32(a, b); }
MINFER_FN vf select(vmask m, vf a, vf b) { return vbslq_f32(m, a, b); }
MINFER_FN vf scale_pow2(vf a, vi n) {
    const int32x4_t bits = vshlq_n_s32(vaddq_s32(n, vdupq_n_s32(127)), 23);
    return vmulq_f32(a, vreinterpretq_f32_s32(bits));
}

MINFER_FN vi load_u8(const uint8_t* p) {
    uint32_t four;
    std::memcpy(&four, p, 4);
    const uint8x8_t bytes = vreinterpret_u8_u32(vdup_n_u32(four));
    return vreinterpretq_s32_u32(vmovl_u16(vget_low_u16(vmovl_u8(bytes))));
}
MINFER_FN vf load_i8(const uint8_t* p) {
    uint32_t four;
    std::memcpy(&four, p, 4);
    const int8x8_t bytes = vreinterpret_s8_u32(vdup_n_u32(four));
    return vcvtq_f32_s32(vmovl_s16(vget_low_s16(vmovl_s8(bytes))));
}
MINFER_FN vf as_vf(vi a) { return vreinterpretq_f32_s32(a); }

MINFER_FN vb load_bytes(const uint8_t* p) { return vld1q_u8(p); }
MINFER_FN void store_bytes(uint8_t* p, vb a) { vst1q_u8(p, a); }
MINFER_FN vb set1_bytes(uint8_t x) { return vdupq_n_u8(x); }
MINFER_FN vb repeat16(const uint8_t* p) { return load_bytes(p); }
template <int N>
MINFER_FN vb shift_bytes(vb a) {
    if constexpr (N > 0) return vshrq_n_u8(a, N);
    if constexpr (N < 0) return vshlq_n_u8(a, -N);
    return a;
}
MINFER_FN vb lookup(vb table, vb index) { return vqtbl1q_u8(table, index); }

// An activation is 256 hi + lo; 32 of them are stored as 32 hi, then 32 lo, all int8.
MINFER_FN void store_exact(uint8_t* block, int i, vi a) {
    const int32x4_t hi = vshrq_n_s32(vaddq_s32(a, vdupq_n_s32(128)), 8);
    const uint16x4_t h = vmovn_u32(vreinterpretq_u32_s32(hi));
    const uint16x4_t l = vmovn_u32(vreinterpretq_u32_s32(a));
    const uint8x8_t both = vmovn_u16(vcombine_u16(h, l));
    const uint64_t bits = vget_lane_u64(vreinterpret_u64_u8(both), 0);
    std::memcpy(block + i, &bits, 4);
    const uint32_t low = uint32_t(bits >> 32);
    std::memcpy(block + 32 + i, &low, 4);
}

// The dot product is of signed bytes, so codes lose 128 before it.
struct ExactDot {
    static constexpr int kCodeShift = 128;
    using Operand = int8x16_t;
    int32x4_t hi, lo;

    MINFER_FN static Operand prepare(vb codes) {
        return vreinterpretq_s8_u8(veorq_u8(codes, vdupq_n_u8(128)));
    }
    MINFER_FN void start(int32_t bias) {
        hi = vdupq_n_s32(0);
        lo = vdupq_n_s32(bias);
    }
    template <int T>
    MINFER_FN void add(Operand codes, const uint8_t* block) {
        int32_t h, l;
        std::memcpy(&h, block + 4 * T, 4);
        std::memcpy(&l, block + 32 + 4 * T, 4);
        hi = vdotq_s32(hi, codes, vreinterpretq_s8_s32(vdupq_n_s32(h)));
        lo = vdotq_s32(lo, codes, vreinterpretq_s8_s32(vdupq_n_s32(l)));
    }
    MINFER_FN vi total() const { return vaddq_s32(vshlq_n_s32(hi, 8), lo); }
};

}  // namespace minfer::neon
