// simd.h for AVX2 with FMA and F16C.
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace minfer::avx2 {

#define MINFER_FN [[gnu::always_inline]] inline

inline constexpr int kWidth = 8;

// The compiler's own vector types: arrays of them stay in registers, arithmetic is built in.
using vf = __m256;
typedef int32_t vi __attribute__((vector_size(32)));
typedef uint8_t vb __attribute__((vector_size(32)));
using vmask = __m256;

MINFER_FN __m256i first_lanes(int n) {
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
MINFER_FN vf load(const float* p) { return _mm256_loadu_ps(p); }
MINFER_FN void store(float* p, vf a) { _mm256_storeu_ps(p, a); }
MINFER_FN vf load_n(const float* p, int n) { return _mm256_maskload_ps(p, first_lanes(n)); }
MINFER_FN void store_n(float* p, vf a, int n) { _mm256_maskstore_ps(p, first_lanes(n), a); }
MINFER_FN vf set1(float x) { return _mm256_set1_ps(x); }
MINFER_FN vi iset1(int32_t x) { return vi(_mm256_set1_epi32(x)); }
MINFER_FN vf fma(vf a, vf b, vf c) { return _mm256_fmadd_ps(a, b, c); }
MINFER_FN vf min(vf a, vf b) { return _mm256_min_ps(a, b); }
MINFER_FN vf max(vf a, vf b) { return _mm256_max_ps(a, b); }
MINFER_FN vf abs_(vf a) { return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), a); }
MINFER_FN vf sqrt_(vf a) { return _mm256_sqrt_ps(a); }
MINFER_FN float sum(vf a) {
    __m128 s = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    s = _mm_add_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
}
MINFER_FN float hmax(vf a) {
    __m128 s = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    s = _mm_max_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_max_ss(s, _mm_movehdup_ps(s)));
}
MINFER_FN int32_t sum(vi a) {
    const __m256i x = __m256i(a);
    __m128i s = _mm_add_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
    s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0x4e));
    return _mm_cvtsi128_si32(_mm_add_epi32(s, _mm_shuffle_epi32(s, 0xb1)));
}

MINFER_FN __m128i load128(const void* p) { return _mm_loadu_si128(static_cast<const __m128i*>(p)); }
MINFER_FN __m128i load64(const void* p) { return _mm_loadl_epi64(static_cast<const __m128i*>(p)); }
MINFER_FN void store128(void* p, __m128i a) { _mm_storeu_si128(static_cast<__m128i*>(p), a); }

MINFER_FN vf load_f16(const uint16_t* p) { return _mm256_cvtph_ps(load128(p)); }
MINFER_FN void store_f16(uint16_t* p, vf a) {
    store128(p, _mm256_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
MINFER_FN vf load_bf16(const uint16_t* p) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(load128(p)), 16));
}
MINFER_FN void store_bf16(uint16_t* p, vf a) {
    const __m256i bits = _mm256_castps_si256(a);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const __m256i half = _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff));
    const __m256i high = _mm256_srli_epi32(_mm256_add_epi32(bits, half), 16);
    const __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(high, high), 0x08);
    store128(p, _mm256_castsi256_si128(packed));
}

MINFER_FN vf to_float(vi a) { return _mm256_cvtepi32_ps(__m256i(a)); }
MINFER_FN vi to_int(vf a) { return vi(_mm256_cvtps_epi32(a)); }
template <int N>
MINFER_FN vi shift_right(vi a) {
    return a >> N;
}
template <int N>
MINFER_FN vi shift_left(vi a) {
    return a << N;
}
MINFER_FN vf as_vf(vi a) { return vf(a); }
MINFER_FN vmask less(vf a, vf b) { return _mm256_cmp_ps(a, b, _CMP_LT_OQ); }
MINFER_FN vf select(vmask m, vf a, vf b) { return _mm256_blendv_ps(b, a, m); }
MINFER_FN vf scale_pow2(vf a, vi n) { return a * as_vf(shift_left<23>(n + 127)); }

MINFER_FN vb load_bytes(const uint8_t* p) {
    return vb(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
MINFER_FN void store_bytes(uint8_t* p, vb a) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), __m256i(a));
}
MINFER_FN vb set1_bytes(uint8_t x) { return vb(_mm256_set1_epi8(char(x))); }
MINFER_FN vb repeat16(const uint8_t* p) { return vb(_mm256_broadcastsi128_si256(load128(p))); }
template <int N>
MINFER_FN vb shift_bytes(vb a) {
    if constexpr (N > 0) return vb(_mm256_srli_epi16(__m256i(a), N));
    if constexpr (N < 0) return vb(_mm256_slli_epi16(__m256i(a), -N));
    return a;
}
MINFER_FN vb lookup(vb table, vb index) {
    return vb(_mm256_shuffle_epi8(__m256i(table), __m256i(index)));
}
MINFER_FN vi load_u8(const uint8_t* p) { return vi(_mm256_cvtepu8_epi32(load64(p))); }
MINFER_FN vf load_i8(const uint8_t* p) {
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(load64(p)));
}

// Activations stay int16, since vpmaddubsw would saturate; of each four the order is 0, 2, 1, 3.
MINFER_FN void store_exact(uint8_t* block, int i, vi a) {
    const __m256i packed = _mm256_packs_epi32(__m256i(a), __m256i(a));
    const __m256i order = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(0, 1, 4, 5, 2, 3, 6, 7, 0, 1, 4, 5, 2, 3, 6, 7));
    const __m256i mixed = _mm256_permute4x64_epi64(_mm256_shuffle_epi8(packed, order), 0x08);
    store128(block + 2 * i, _mm256_castsi256_si128(mixed));
}

struct ExactDot {
    static constexpr int kCodeShift = 0;
    struct Operand {
        __m256i even, odd;  // codes 0, 2 and 1, 3 of each four, as 16 bits
    };
    vi sum;

    MINFER_FN static Operand prepare(vb codes) {
        const __m256i x = __m256i(codes);
        return {_mm256_and_si256(x, _mm256_set1_epi16(0xff)), _mm256_srli_epi16(x, 8)};
    }
    MINFER_FN void start(int32_t bias) { sum = iset1(bias); }
    template <int T>
    MINFER_FN void add(Operand codes, const uint8_t* block) {
        int32_t even, odd;
        __builtin_memcpy(&even, block + 8 * T, 4);
        __builtin_memcpy(&odd, block + 8 * T + 4, 4);
        sum += vi(_mm256_madd_epi16(codes.even, _mm256_set1_epi32(even)));
        sum += vi(_mm256_madd_epi16(codes.odd, _mm256_set1_epi32(odd)));
        // GCC would reassociate the sum of all products, and spill them until it is due.
        asm("" : "+x"(sum));
    }
    MINFER_FN vi total() const { return sum; }
};

}  // namespace minfer::avx2
