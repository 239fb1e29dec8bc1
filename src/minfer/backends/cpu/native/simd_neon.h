// simd.h for ARM NEON (AArch64) with the dot-product extension.
#pragma once

#include <arm_neon.h>

#include <cstdint>
#include <cstring>

namespace minfer::neon {

#define MINFER_FN [[gnu::always_inline]] inline

inline constexpr int kWidth = 4;

struct vf {
    float32x4_t v;
};
struct vi {
    int32x4_t v;
};
struct vmask {
    uint32x4_t v;
};

MINFER_FN vf operator+(vf a, vf b) { return {vaddq_f32(a.v, b.v)}; }
MINFER_FN vf operator-(vf a, vf b) { return {vsubq_f32(a.v, b.v)}; }
MINFER_FN vf operator*(vf a, vf b) { return {vmulq_f32(a.v, b.v)}; }
MINFER_FN vf operator/(vf a, vf b) { return {vdivq_f32(a.v, b.v)}; }
MINFER_FN vi operator+(vi a, vi b) { return {vaddq_s32(a.v, b.v)}; }
MINFER_FN vi operator-(vi a, vi b) { return {vsubq_s32(a.v, b.v)}; }
MINFER_FN vi operator*(vi a, vi b) { return {vmulq_s32(a.v, b.v)}; }

MINFER_FN vf load(const float* p) { return {vld1q_f32(p)}; }
MINFER_FN void store(float* p, vf a) { vst1q_f32(p, a.v); }
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
MINFER_FN vf set1(float x) { return {vdupq_n_f32(x)}; }
MINFER_FN vi iset1(int32_t x) { return {vdupq_n_s32(x)}; }
MINFER_FN vf fma(vf a, vf b, vf c) { return {vfmaq_f32(c.v, a.v, b.v)}; }
MINFER_FN vf min(vf a, vf b) { return {vminq_f32(a.v, b.v)}; }
MINFER_FN vf max(vf a, vf b) { return {vmaxq_f32(a.v, b.v)}; }
MINFER_FN vf abs_(vf a) { return {vabsq_f32(a.v)}; }
MINFER_FN vf sqrt_(vf a) { return {vsqrtq_f32(a.v)}; }
MINFER_FN float sum(vf a) { return vaddvq_f32(a.v); }
MINFER_FN float hmax(vf a) { return vmaxvq_f32(a.v); }
MINFER_FN int32_t sum(vi a) { return vaddvq_s32(a.v); }

MINFER_FN vf load_f16(const uint16_t* p) {
    return {vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p)))};
}
MINFER_FN void store_f16(uint16_t* p, vf a) {
    vst1_u16(p, vreinterpret_u16_f16(vcvt_f16_f32(a.v)));
}
MINFER_FN vf load_bf16(const uint16_t* p) {
    return {vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(p), 16))};
}
MINFER_FN void store_bf16(uint16_t* p, vf a) {
    const uint32x4_t bits = vreinterpretq_u32_f32(a.v);
    const uint32x4_t odd = vandq_u32(vshrq_n_u32(bits, 16), vdupq_n_u32(1));
    vst1_u16(p, vshrn_n_u32(vaddq_u32(bits, vaddq_u32(odd, vdupq_n_u32(0x7fff))), 16));
}

MINFER_FN vf to_float(vi a) { return {vcvtq_f32_s32(a.v)}; }
MINFER_FN vi to_int(vf a) { return {vcvtnq_s32_f32(a.v)}; }
template <int N>
MINFER_FN vi shift_right(vi a) {  // keeps the sign
    return {vshrq_n_s32(a.v, N)};
}
template <int N>
MINFER_FN vi shift_left(vi a) {
    return {vshlq_n_s32(a.v, N)};
}
MINFER_FN vmask less(vf a, vf b) { return {vcltq_f32(a.v, b.v)}; }
MINFER_FN vf select(vmask m, vf a, vf b) { return {vbslq_f32(m.v, a.v, b.v)}; }
MINFER_FN vf scale_pow2(vf a, vi n) {
    const int32x4_t bits = vshlq_n_s32(vaddq_s32(n.v, vdupq_n_s32(127)), 23);
    return {vmulq_f32(a.v, vreinterpretq_f32_s32(bits))};
}

}  // namespace minfer::neon
