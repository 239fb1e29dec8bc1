// simd.h for AVX2 with FMA and F16C.
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace minfer::avx2 {

#define MINFER_FN [[gnu::always_inline]] inline

inline constexpr int kWidth = 8;

struct vf {
    __m256 v;
};
struct vi {
    __m256i v;
};
struct vmask {
    __m256 v;
};

MINFER_FN vf operator+(vf a, vf b) { return {_mm256_add_ps(a.v, b.v)}; }
MINFER_FN vf operator-(vf a, vf b) { return {_mm256_sub_ps(a.v, b.v)}; }
MINFER_FN vf operator*(vf a, vf b) { return {_mm256_mul_ps(a.v, b.v)}; }
MINFER_FN vf operator/(vf a, vf b) { return {_mm256_div_ps(a.v, b.v)}; }
MINFER_FN vi operator+(vi a, vi b) { return {_mm256_add_epi32(a.v, b.v)}; }
MINFER_FN vi operator-(vi a, vi b) { return {_mm256_sub_epi32(a.v, b.v)}; }
MINFER_FN vi operator*(vi a, vi b) { return {_mm256_mullo_epi32(a.v, b.v)}; }

MINFER_FN __m256i first_lanes(int n) {
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
MINFER_FN vf load(const float* p) { return {_mm256_loadu_ps(p)}; }
MINFER_FN void store(float* p, vf a) { _mm256_storeu_ps(p, a.v); }
MINFER_FN vf load_n(const float* p, int n) { return {_mm256_maskload_ps(p, first_lanes(n))}; }
MINFER_FN void store_n(float* p, vf a, int n) { _mm256_maskstore_ps(p, first_lanes(n), a.v); }
MINFER_FN vf set1(float x) { return {_mm256_set1_ps(x)}; }
MINFER_FN vi iset1(int32_t x) { return {_mm256_set1_epi32(x)}; }
MINFER_FN vf fma(vf a, vf b, vf c) { return {_mm256_fmadd_ps(a.v, b.v, c.v)}; }
MINFER_FN vf min(vf a, vf b) { return {_mm256_min_ps(a.v, b.v)}; }
MINFER_FN vf max(vf a, vf b) { return {_mm256_max_ps(a.v, b.v)}; }
MINFER_FN vf abs_(vf a) { return {_mm256_andnot_ps(_mm256_set1_ps(-0.0f), a.v)}; }
MINFER_FN vf sqrt_(vf a) { return {_mm256_sqrt_ps(a.v)}; }
MINFER_FN float sum(vf a) {
    __m128 s = _mm_add_ps(_mm256_castps256_ps128(a.v), _mm256_extractf128_ps(a.v, 1));
    s = _mm_add_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
}
MINFER_FN float hmax(vf a) {
    __m128 s = _mm_max_ps(_mm256_castps256_ps128(a.v), _mm256_extractf128_ps(a.v, 1));
    s = _mm_max_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_max_ss(s, _mm_movehdup_ps(s)));
}
MINFER_FN int32_t sum(vi a) {
    __m128i s = _mm_add_epi32(_mm256_castsi256_si128(a.v), _mm256_extracti128_si256(a.v, 1));
    s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0x4e));
    return _mm_cvtsi128_si32(_mm_add_epi32(s, _mm_shuffle_epi32(s, 0xb1)));
}

MINFER_FN vf load_f16(const uint16_t* p) {
    return {_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)))};
}
MINFER_FN void store_f16(uint16_t* p, vf a) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p),
                     _mm256_cvtps_ph(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
MINFER_FN vf load_bf16(const uint16_t* p) {
    const __m128i h = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    return {_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(h), 16))};
}
MINFER_FN void store_bf16(uint16_t* p, vf a) {
    const __m256i bits = _mm256_castps_si256(a.v);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const __m256i rounded = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
    const __m256i high = _mm256_srli_epi32(rounded, 16);
    const __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(high, high), 0x08);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_castsi256_si128(packed));
}

MINFER_FN vf to_float(vi a) { return {_mm256_cvtepi32_ps(a.v)}; }
MINFER_FN vi to_int(vf a) { return {_mm256_cvtps_epi32(a.v)}; }
template <int N>
MINFER_FN vi shift_right(vi a) {  // keeps the sign
    return {_mm256_srai_epi32(a.v, N)};
}
template <int N>
MINFER_FN vi shift_left(vi a) {
    return {_mm256_slli_epi32(a.v, N)};
}
MINFER_FN vmask less(vf a, vf b) { return {_mm256_cmp_ps(a.v, b.v, _CMP_LT_OQ)}; }
MINFER_FN vf select(vmask m, vf a, vf b) { return {_mm256_blendv_ps(b.v, a.v, m.v)}; }
MINFER_FN vf scale_pow2(vf a, vi n) {
    const __m256i one = _mm256_set1_epi32(127);
    return {_mm256_mul_ps(
        a.v, _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(n.v, one), 23)))};
}

MINFER_FN vi load_u8(const uint8_t* p) {
    return {_mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)))};
}
MINFER_FN vf load_i8(const uint8_t* p) {
    return {_mm256_cvtepi32_ps(
        _mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))))};
}
MINFER_FN vi and_(vi a, int32_t mask) {
    return {_mm256_and_si256(a.v, _mm256_set1_epi32(mask))};
}
MINFER_FN vf as_vf(vi a) { return {_mm256_castsi256_ps(a.v)}; }

struct vb {
    __m256i v;
};
MINFER_FN vb load_bytes(const uint8_t* p) {
    return {_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))};
}
MINFER_FN void store_bytes(uint8_t* p, vb a) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), a.v);
}
MINFER_FN vb set1_bytes(uint8_t x) { return {_mm256_set1_epi8(char(x))}; }
MINFER_FN vb repeat16(const uint8_t* p) {
    return {_mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)))};
}
MINFER_FN vb operator&(vb a, vb b) { return {_mm256_and_si256(a.v, b.v)}; }
MINFER_FN vb operator|(vb a, vb b) { return {_mm256_or_si256(a.v, b.v)}; }
template <int N>
MINFER_FN vb shift_bytes(vb a) {
    if constexpr (N > 0) return {_mm256_srli_epi16(a.v, N)};
    if constexpr (N < 0) return {_mm256_slli_epi16(a.v, -N)};
    return a;
}
MINFER_FN vb lookup(vb table, vb index) { return {_mm256_shuffle_epi8(table.v, index.v)}; }

// Activations stay int16, since vpmaddubsw would saturate; of each four the order is 0, 2, 1, 3.
MINFER_FN void store_exact(uint8_t* block, int i, vi a) {
    const __m256i packed = _mm256_packs_epi32(a.v, a.v);
    const __m256i order = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(0, 1, 4, 5, 2, 3, 6, 7, 0, 1, 4, 5, 2, 3, 6, 7));
    const __m256i mixed = _mm256_permute4x64_epi64(_mm256_shuffle_epi8(packed, order), 0x08);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(block + 2 * i), _mm256_castsi256_si128(mixed));
}

struct ExactDot {
    static constexpr int kCodeShift = 0;
    struct Operand {
        __m256i even, odd;  // codes 0, 2 and 1, 3 of each four, as 16 bits
    };
    __m256i sum;

    MINFER_FN static Operand prepare(vb codes) {
        return {_mm256_and_si256(codes.v, _mm256_set1_epi16(0xff)), _mm256_srli_epi16(codes.v, 8)};
    }
    MINFER_FN void start(int32_t bias) { sum = _mm256_set1_epi32(bias); }
    template <int T>
    MINFER_FN void add(Operand codes, const uint8_t* block) {
        int32_t even, odd;
        __builtin_memcpy(&even, block + 8 * T, 4);
        __builtin_memcpy(&odd, block + 8 * T + 4, 4);
        sum = _mm256_add_epi32(sum, _mm256_madd_epi16(codes.even, _mm256_set1_epi32(even)));
        sum = _mm256_add_epi32(sum, _mm256_madd_epi16(codes.odd, _mm256_set1_epi32(odd)));
    }
    MINFER_FN vi total() const { return {sum}; }
};

}  // namespace minfer::avx2
