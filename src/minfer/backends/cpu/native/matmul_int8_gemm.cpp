// The inner product of the int8 path: 4 rows times 32 columns over the whole input width.
//
//   y[r][c] = sum over groups of  ascale[r] wscale[c] (sum_k u[k][c] a[r][k] - 128 sum_k a[r][k])
//                                 + minimum[c] sum_k x[r][k]
//
// with u the expanded unsigned bytes. Per 32 inputs and register of columns: 8 vpdpbusd, one
// conversion, one multiply, one or two FMA.

#include "matmul_int8.h"

#if defined(MINFER_ISA_avx512)

namespace minfer::avx512 {

namespace {

struct Sums {
    vf of[kInt8Rows][kPair];
};

MINFER_FN Sums zeros() {
    Sums sums;
    for (auto& row : sums.of) row[0] = row[1] = set1(0.0f);
    return sums;
}

MINFER_FN void store_sums(const Sums& sums, float* out, int64_t stride) {
    for (int r = 0; r < kInt8Rows; ++r) {
        for (int p = 0; p < kPair; ++p) store(out + r * stride + p * kPanel, sums.of[r][p]);
    }
}

using Dots = __m512i[kInt8Rows][kPair];

MINFER_FN void start(Dots& dots, const int32_t (&bias)[kInt8Rows]) {
    for (int r = 0; r < kInt8Rows; ++r) {
        dots[r][0] = dots[r][1] = _mm512_set1_epi32(bias[r]);
    }
}

// Dot products of the four inputs at each of planes [begin, end).
template <int Begin, int End>
MINFER_FN void dot(Dots& dots, const uint8_t* weights, const int8_t (&data)[8][kInt8Rows][4]) {
#pragma GCC unroll 8
    for (int t = Begin; t < End; ++t) {
        const __m512i w0 = _mm512_load_si512(weights + 2 * t * kPlane);
        const __m512i w1 = _mm512_load_si512(weights + (2 * t + 1) * kPlane);
        for (int r = 0; r < kInt8Rows; ++r) {
            int32_t four;
            __builtin_memcpy(&four, data[t][r], 4);
            const __m512i a = _mm512_set1_epi32(four);
            dots[r][0] = _mm512_dpbusd_epi32(dots[r][0], w0, a);
            dots[r][1] = _mm512_dpbusd_epi32(dots[r][1], w1, a);
        }
    }
}

MINFER_FN void scale_and_add(Sums& sums, const Dots& dots, const float* scales,
                             const float (&row_scales)[kInt8Rows]) {
    for (int p = 0; p < kPair; ++p) {
        const vf w = load(scales + p * kPanel);
        for (int r = 0; r < kInt8Rows; ++r) {
            sums.of[r][p] = fma(to_float(vi{dots[r][p]}), w * set1(row_scales[r]), sums.of[r][p]);
        }
    }
}

MINFER_FN void add_minimums(Sums& sums, const float* minimums, const float (&row_sums)[kInt8Rows]) {
    for (int p = 0; p < kPair; ++p) {
        const vf m = load(minimums + p * kPanel);
        for (int r = 0; r < kInt8Rows; ++r) {
            sums.of[r][p] = fma(m, set1(row_sums[r]), sums.of[r][p]);
        }
    }
}

template <int Group, bool Minimum>
void multiply_rotated(int64_t n_in, const uint8_t* weights, const float* scales,
                      const float* minimums, const RotatedBlock* a, float* out,
                      int64_t stride) {
    Sums sums = zeros();
    for (int64_t i = 0; i < n_in / 32; ++i, ++a, weights += 32 * kPair * kPanel) {
        Dots dots;
        if constexpr (Group == 32) {
            start(dots, a->bias[0]);
            dot<0, 8>(dots, weights, a->data);
            scale_and_add(sums, dots, scales, a->scale);
            if constexpr (Minimum) add_minimums(sums, minimums, a->sum[0]);
        } else {
            int32_t rest[kInt8Rows];
            for (int r = 0; r < kInt8Rows; ++r) rest[r] = a->bias[0][r] - a->bias[1][r];
            start(dots, a->bias[1]);
            dot<0, 4>(dots, weights, a->data);
            scale_and_add(sums, dots, scales, a->scale);
            start(dots, rest);
            dot<4, 8>(dots, weights, a->data);
            scale_and_add(sums, dots, scales + kPair * kPanel, a->scale);
            if constexpr (Minimum) {
                float others[kInt8Rows];
                for (int r = 0; r < kInt8Rows; ++r) others[r] = a->sum[0][r] - a->sum[1][r];
                add_minimums(sums, minimums, a->sum[1]);
                add_minimums(sums, minimums + kPair * kPanel, others);
            }
        }
        scales += 32 / Group * kPair * kPanel;
        minimums += 32 / Group * kPair * kPanel;
    }
    store_sums(sums, out, stride);
}

// Whether a block has a second term changes nothing for rows whose second term is zero: the
// powers of two are exact.
void multiply_wide(int64_t n_in, const uint8_t* weights, const float* scales, const WideBlock* a,
                   float* out, int64_t stride) {
    Sums sums = zeros();
    for (int64_t i = 0; i < n_in / 32; ++i, ++a, weights += 32 * kPair * kPanel) {
        Dots high;
        start(high, a->bias[0]);
        dot<0, 8>(high, weights, a->high);
        if (a->has_low) {
            for (auto& row : high) {
                for (__m512i& x : row) x = _mm512_slli_epi32(x, 8);
            }
            for (int r = 0; r < kInt8Rows; ++r) {
                const __m512i bias = _mm512_set1_epi32(a->bias[1][r]);
                high[r][0] = _mm512_add_epi32(high[r][0], bias);
                high[r][1] = _mm512_add_epi32(high[r][1], bias);
            }
            dot<0, 8>(high, weights, a->low);
            float row_scales[kInt8Rows];
            for (int r = 0; r < kInt8Rows; ++r) row_scales[r] = a->scale[r] * 0x1p-8f;
            scale_and_add(sums, high, scales, row_scales);
        } else {
            scale_and_add(sums, high, scales, a->scale);
        }
        scales += kPair * kPanel;
    }
    store_sums(sums, out, stride);
}

}  // namespace

void multiply_int8(Format format, int64_t n_in, const uint8_t* expanded, const uint8_t* tile,
                   float* out, int64_t stride) {
    const float* scales = reinterpret_cast<const float*>(expanded + n_in * kPair * kPanel);
    const float* minimums = scales + n_in / 16 * kPair * kPanel;
    const Traits t = traits(format);
    if (many_form(format) == Form::wide) {
        multiply_wide(n_in, expanded, scales, reinterpret_cast<const WideBlock*>(tile), out,
                      stride);
        return;
    }
    const auto run = t.group == 32
                         ? (t.minimum ? multiply_rotated<32, true> : multiply_rotated<32, false>)
                         : (t.minimum ? multiply_rotated<16, true> : multiply_rotated<16, false>);
    run(n_in, expanded, scales, minimums, reinterpret_cast<const RotatedBlock*>(tile), out,
        stride);
}

}  // namespace minfer::avx512
#endif
