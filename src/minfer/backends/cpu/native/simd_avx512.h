// simd.h for AVX-512 (F, BW, DQ, VL) with VNNI.
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace minfer::avx512 {

#define MINFER_FN [[gnu::always_inline]] inline

inline constexpr int kWidth = 16;

// The compiler's own vector types: arrays of them stay in registers, arithmetic is built in.
using vf = __m512;
typedef int32_t vi __attribute__((vector_size(64)));
typedef uint8_t vb __attribute__((vector_size(64)));
using vmask = __mmask16;

MINFER_FN __mmask16 first_lanes(int n) { return __mmask16((1u << n) - 1); }
MINFER_FN vf load(const float* p) { return _mm512_loadu_ps(p); }
MINFER_FN void store(float* p, vf a) { _mm512_storeu_ps(p, a); }
MINFER_FN vf load_n(const float* p, int n) { return _mm512_maskz_loadu_ps(first_lanes(n), p); }
MINFER_FN void store_n(float* p, vf a, int n) { _mm512_mask_storeu_ps(p, first_lanes(n), a); }
MINFER_FN vf set1(float x) { return _mm512_set1_ps(x); }
MINFER_FN vi iset1(int32_t x) { return vi(_mm512_set1_epi32(x)); }
MINFER_FN vf fma(vf a, vf b, vf c) { return _mm512_fmadd_ps(a, b, c); }
MINFER_FN vf min(vf a, vf b) { return _mm512_min_ps(a, b); }
MINFER_FN vf max(vf a, vf b) { return _mm512_max_ps(a, b); }
MINFER_FN vf abs_(vf a) { return _mm512_abs_ps(a); }
MINFER_FN vf sqrt_(vf a) { return _mm512_sqrt_ps(a); }
MINFER_FN float sum(vf a) { return _mm512_reduce_add_ps(a); }
MINFER_FN float hmax(vf a) { return _mm512_reduce_max_ps(a); }
MINFER_FN int32_t sum(vi a) { return _mm512_reduce_add_epi32(__m512i(a)); }

MINFER_FN __m256i load256(const void* p) {
    return _mm256_loadu_si256(static_cast<const __m256i*>(p));
}
MINFER_FN void store256(void* p, __m256i a) { _mm256_storeu_si256(static_cast<__m256i*>(p), a); }
MINFER_FN __m128i load128(const void* p) { return _mm_loadu_si128(static_cast<const __m128i*>(p)); }
MINFER_FN void store128(void* p, __m128i a) { _mm_storeu_si128(static_cast<__m128i*>(p), a); }

MINFER_FN vf load_f16(const uint16_t* p) { return _mm512_cvtph_ps(load256(p)); }
MINFER_FN void store_f16(uint16_t* p, vf a) {
    store256(p, _mm512_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
MINFER_FN vf load_bf16(const uint16_t* p) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(load256(p)), 16));
}
MINFER_FN void store_bf16(uint16_t* p, vf a) {
    const __m512i bits = _mm512_castps_si512(a);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const __m512i half = _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff));
    store256(p, _mm512_cvtepi32_epi16(_mm512_srli_epi32(_mm512_add_epi32(bits, half), 16)));
}

MINFER_FN vf to_float(vi a) { return _mm512_cvtepi32_ps(__m512i(a)); }
MINFER_FN vi to_int(vf a) { return vi(_mm512_cvtps_epi32(a)); }
template <int N>
MINFER_FN vi shift_right(vi a) {
    return a >> N;
}
template <int N>
MINFER_FN vi shift_left(vi a) {
    return a << N;
}
MINFER_FN vf as_vf(vi a) { return vf(a); }
MINFER_FN vmask less(vf a, vf b) { return _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ); }
MINFER_FN vf select(vmask m, vf a, vf b) { return _mm512_mask_blend_ps(m, b, a); }
MINFER_FN vf scale_pow2(vf a, vi n) { return a * as_vf(shift_left<23>(n + 127)); }

MINFER_FN vb load_bytes(const uint8_t* p) { return vb(_mm512_loadu_si512(p)); }
MINFER_FN void store_bytes(uint8_t* p, vb a) { _mm512_storeu_si512(p, __m512i(a)); }
MINFER_FN vb set1_bytes(uint8_t x) { return vb(_mm512_set1_epi8(char(x))); }
MINFER_FN vb repeat16(const uint8_t* p) { return vb(_mm512_broadcast_i32x4(load128(p))); }
template <int N>
MINFER_FN vb shift_bytes(vb a) {
    if constexpr (N > 0) return vb(_mm512_srli_epi16(__m512i(a), N));
    if constexpr (N < 0) return vb(_mm512_slli_epi16(__m512i(a), -N));
    return a;
}
MINFER_FN vb lookup(vb table, vb index) {
    return vb(_mm512_shuffle_epi8(__m512i(table), __m512i(index)));
}
MINFER_FN vi load_u8(const uint8_t* p) { return vi(_mm512_cvtepu8_epi32(load128(p))); }
MINFER_FN vf load_i8(const uint8_t* p) {
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(load128(p)));
}

// An activation is 256 hi + lo; 32 of them are stored as 32 hi, then 32 lo, all int8.
MINFER_FN void store_exact(uint8_t* block, int i, vi a) {
    store128(block + i, _mm512_cvtepi32_epi8(__m512i(shift_right<8>(a + 128))));
    store128(block + 32 + i, _mm512_cvtepi32_epi8(__m512i(a)));
}

// acc + the dot product of each four unsigned bytes with four signed ones at p.
MINFER_FN vi dot4(vi acc, vb codes, const void* p) {
    int32_t four;
    __builtin_memcpy(&four, p, 4);
    return vi(_mm512_dpbusd_epi32(__m512i(acc), __m512i(codes), _mm512_set1_epi32(four)));
}

struct ExactDot {
    static constexpr int kCodeShift = 0;
    using Operand = vb;
    vi hi, lo;

    MINFER_FN static Operand prepare(vb codes) { return codes; }
    MINFER_FN void start(int32_t bias) {
        hi = iset1(0);
        lo = iset1(bias);
    }
    template <int T>
    MINFER_FN void add(Operand codes, const uint8_t* block) {
        hi = dot4(hi, codes, block + 4 * T);
        lo = dot4(lo, codes, block + 32 + 4 * T);
    }
    MINFER_FN vi total() const { return shift_left<8>(hi) + lo; }
};

}  // namespace minfer::avx512
