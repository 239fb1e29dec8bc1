// simd.h for AVX-512 (F, BW, DQ, VL) with VNNI.
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace minfer::avx512 {

#define MINFER_FN [[gnu::always_inline]] inline

inline constexpr int kWidth = 16;

struct vf {
    __m512 v;
};
struct vi {
    __m512i v;
};
struct vmask {
    __mmask16 v;
};

MINFER_FN vf operator+(vf a, vf b) { return {_mm512_add_ps(a.v, b.v)}; }
MINFER_FN vf operator-(vf a, vf b) { return {_mm512_sub_ps(a.v, b.v)}; }
MINFER_FN vf operator*(vf a, vf b) { return {_mm512_mul_ps(a.v, b.v)}; }
MINFER_FN vf operator/(vf a, vf b) { return {_mm512_div_ps(a.v, b.v)}; }
MINFER_FN vi operator+(vi a, vi b) { return {_mm512_add_epi32(a.v, b.v)}; }
MINFER_FN vi operator-(vi a, vi b) { return {_mm512_sub_epi32(a.v, b.v)}; }
MINFER_FN vi operator*(vi a, vi b) { return {_mm512_mullo_epi32(a.v, b.v)}; }

MINFER_FN __mmask16 first_lanes(int n) { return __mmask16((1u << n) - 1); }
MINFER_FN vf load(const float* p) { return {_mm512_loadu_ps(p)}; }
MINFER_FN void store(float* p, vf a) { _mm512_storeu_ps(p, a.v); }
MINFER_FN vf load_n(const float* p, int n) { return {_mm512_maskz_loadu_ps(first_lanes(n), p)}; }
MINFER_FN void store_n(float* p, vf a, int n) {
    _mm512_mask_storeu_ps(p, first_lanes(n), a.v);
}
MINFER_FN vf set1(float x) { return {_mm512_set1_ps(x)}; }
MINFER_FN vi iset1(int32_t x) { return {_mm512_set1_epi32(x)}; }
MINFER_FN vf fma(vf a, vf b, vf c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
MINFER_FN vf min(vf a, vf b) { return {_mm512_min_ps(a.v, b.v)}; }
MINFER_FN vf max(vf a, vf b) { return {_mm512_max_ps(a.v, b.v)}; }
MINFER_FN vf abs_(vf a) { return {_mm512_abs_ps(a.v)}; }
MINFER_FN vf sqrt_(vf a) { return {_mm512_sqrt_ps(a.v)}; }
MINFER_FN float sum(vf a) { return _mm512_reduce_add_ps(a.v); }
MINFER_FN float hmax(vf a) { return _mm512_reduce_max_ps(a.v); }
MINFER_FN int32_t sum(vi a) { return _mm512_reduce_add_epi32(a.v); }

MINFER_FN vf load_f16(const uint16_t* p) {
    return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
}
MINFER_FN void store_f16(uint16_t* p, vf a) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p),
                        _mm512_cvtps_ph(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
MINFER_FN vf load_bf16(const uint16_t* p) {
    const __m256i h = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16))};
}
MINFER_FN void store_bf16(uint16_t* p, vf a) {
    const __m512i bits = _mm512_castps_si512(a.v);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const __m512i rounded = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p),
                        _mm512_cvtepi32_epi16(_mm512_srli_epi32(rounded, 16)));
}

MINFER_FN vf to_float(vi a) { return {_mm512_cvtepi32_ps(a.v)}; }
MINFER_FN vi to_int(vf a) { return {_mm512_cvtps_epi32(a.v)}; }
template <int N>
MINFER_FN vi shift_right(vi a) {  // keeps the sign
    return {_mm512_srai_epi32(a.v, N)};
}
template <int N>
MINFER_FN vi shift_left(vi a) {
    return {_mm512_slli_epi32(a.v, N)};
}
MINFER_FN vmask less(vf a, vf b) { return {_mm512_cmp_ps_mask(a.v, b.v, _CMP_LT_OQ)}; }
MINFER_FN vf select(vmask m, vf a, vf b) { return {_mm512_mask_blend_ps(m.v, b.v, a.v)}; }
MINFER_FN vf scale_pow2(vf a, vi n) {
    const __m512i one = _mm512_set1_epi32(127);
    return {_mm512_mul_ps(
        a.v, _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_add_epi32(n.v, one), 23)))};
}

MINFER_FN vf load_i8(const uint8_t* p) {
    return {_mm512_cvtepi32_ps(
        _mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))))};
}
MINFER_FN vi load_u8(const uint8_t* p) {
    return {_mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)))};
}
MINFER_FN vi and_(vi a, int32_t mask) {
    return {_mm512_and_si512(a.v, _mm512_set1_epi32(mask))};
}
MINFER_FN vf as_vf(vi a) { return {_mm512_castsi512_ps(a.v)}; }

struct vb {
    __m512i v;
};
MINFER_FN vb load_bytes(const uint8_t* p) { return {_mm512_loadu_si512(p)}; }
MINFER_FN void store_bytes(uint8_t* p, vb a) { _mm512_storeu_si512(p, a.v); }
MINFER_FN vb set1_bytes(uint8_t x) { return {_mm512_set1_epi8(char(x))}; }
MINFER_FN vb repeat16(const uint8_t* p) {
    return {_mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)))};
}
MINFER_FN vb operator&(vb a, vb b) { return {_mm512_and_si512(a.v, b.v)}; }
MINFER_FN vb operator|(vb a, vb b) { return {_mm512_or_si512(a.v, b.v)}; }
template <int N>
MINFER_FN vb shift_bytes(vb a) {
    if constexpr (N > 0) return {_mm512_srli_epi16(a.v, N)};
    if constexpr (N < 0) return {_mm512_slli_epi16(a.v, -N)};
    return a;
}
MINFER_FN vb lookup(vb table, vb index) { return {_mm512_shuffle_epi8(table.v, index.v)}; }

// An activation is 256 hi + lo; 32 of them are stored as 32 hi, then 32 lo, all int8.
MINFER_FN void store_exact(uint8_t* block, int i, vi a) {
    const __m512i hi = _mm512_srai_epi32(_mm512_add_epi32(a.v, _mm512_set1_epi32(128)), 8);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(block + i), _mm512_cvtepi32_epi8(hi));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(block + 32 + i), _mm512_cvtepi32_epi8(a.v));
}

struct ExactDot {
    static constexpr int kCodeShift = 0;
    using Operand = __m512i;
    __m512i hi, lo;

    MINFER_FN static Operand prepare(vb codes) { return codes.v; }
    MINFER_FN void start(int32_t bias) {
        hi = _mm512_setzero_si512();
        lo = _mm512_set1_epi32(bias);
    }
    template <int T>
    MINFER_FN void add(Operand codes, const uint8_t* block) {
        int32_t h, l;
        __builtin_memcpy(&h, block + 4 * T, 4);
        __builtin_memcpy(&l, block + 32 + 4 * T, 4);
        hi = _mm512_dpbusd_epi32(hi, codes, _mm512_set1_epi32(h));
        lo = _mm512_dpbusd_epi32(lo, codes, _mm512_set1_epi32(l));
    }
    MINFER_FN vi total() const { return {_mm512_add_epi32(_mm512_slli_epi32(hi, 8), lo)}; }
};

}  // namespace minfer::avx512
