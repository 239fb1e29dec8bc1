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

using Dots = vi[kInt8Rows][kPair];
using Sums = vf[kInt8Rows][kPair];

// f(row, panel) for every register of a tile.
template <typename F>
MINFER_FN void for_each(F&& f) {
    unroll<kInt8Rows>([&](auto r) MINFER_LAMBDA {
        unroll<kPair>([&](auto p) MINFER_LAMBDA { f(r, p); });
    });
}

MINFER_FN void start(Dots& dots, const int32_t (&bias)[kInt8Rows]) {
    for_each([&](auto r, auto p) MINFER_LAMBDA { dots[r][p] = iset1(bias[r]); });
}

// Add the dot products over planes [Begin, End).
template <int Begin, int End>
MINFER_FN void dot(Dots& dots, const uint8_t* weights, const int8_t (&data)[8][kInt8Rows][4]) {
    unroll<End - Begin>([&](auto i) MINFER_LAMBDA {
        constexpr int t = Begin + i;
        const vb w[kPair] = {load_bytes(weights + 2 * t * kPlane),
                             load_bytes(weights + (2 * t + 1) * kPlane)};
        for_each([&](auto r, auto p) MINFER_LAMBDA {
            dots[r][p] = dot4(dots[r][p], w[p], data[t][r]);
        });
    });
}

MINFER_FN void scale_and_add(Sums& sums, const Dots& dots, const float* scales,
                             const float (&row_scales)[kInt8Rows]) {
    for_each([&](auto r, auto p) MINFER_LAMBDA {
        const vf scale = load(scales + p * kPanel) * set1(row_scales[r]);
        sums[r][p] = fma(to_float(dots[r][p]), scale, sums[r][p]);
    });
}

MINFER_FN void add_minimums(Sums& sums, const float* minimums, const float (&row_sums)[kInt8Rows]) {
    for_each([&](auto r, auto p) MINFER_LAMBDA {
        sums[r][p] = fma(load(minimums + p * kPanel), set1(row_sums[r]), sums[r][p]);
    });
}

template <int Group, bool Minimum>
void multiply_rotated(int64_t n_in, const uint8_t* weights, const float* scales,
                      const float* minimums, const RotatedBlock* a, float* out,
                      int64_t stride) {
    Sums sums;
    for_each([&](auto r, auto p) MINFER_LAMBDA { sums[r][p] = set1(0.0f); });
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
    for_each([&](auto r, auto p) MINFER_LAMBDA {
        store(out + r * stride + p * kPanel, sums[r][p]);
    });
}

// Whether a block has a second term changes nothing for rows whose second term is zero: the
// powers of two are exact.
void multiply_wide(int64_t n_in, const uint8_t* weights, const float* scales, const WideBlock* a,
                   float* out, int64_t stride) {
    Sums sums;
    for_each([&](auto r, auto p) MINFER_LAMBDA { sums[r][p] = set1(0.0f); });
    for (int64_t i = 0; i < n_in / 32; ++i, ++a, weights += 32 * kPair * kPanel) {
        Dots dots;
        start(dots, a->bias[0]);
        dot<0, 8>(dots, weights, a->high);
        forget_loads();
        if (a->has_low) {
            for_each([&](auto r, auto p) MINFER_LAMBDA {
                dots[r][p] = shift_left<8>(dots[r][p]) + iset1(a->bias[1][r]);
            });
            dot<0, 8>(dots, weights, a->low);
        }
        scale_and_add(sums, dots, scales, a->scale[a->has_low]);
        scales += kPair * kPanel;
    }
    for_each([&](auto r, auto p) MINFER_LAMBDA {
        store(out + r * stride + p * kPanel, sums[r][p]);
    });
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
