// Vectors of floats, the same names for every instruction set.
//
// A kernel file includes this and is compiled once for each set with -DMINFER_ISA=avx512|avx2|
// neon|scalar into the namespace minfer::<set>; `simd_<set>.h` gives:
//
//   vf, vi                     kWidth floats, kWidth int32; + - * / work on both, & | on vi and vb
//   load store load_n store_n  unaligned; the _n forms touch n < kWidth elements, the rest is 0
//   set1(x) iset1(i)           broadcast
//   fma(a, b, c)               a * b + c, rounded once where the set can
//   min max abs_ sqrt_         element-wise; min and max of a NaN are the second operand
//   sum hmax                   across the register, in a fixed order
//   load_f16 store_f16 load_bf16 store_bf16   kWidth 16-bit floats, rounded to nearest even
//   to_float to_int            int32 <-> float, to nearest even
//   less select                mask of a < b; mask ? a : b
//   scale_pow2(x, n)           x * 2^n for n with 2^n a normal number
//   shift_left<N> shift_right<N>   of int32; right keeps the sign
//   as_vf                      the bits of int32 as floats
//
//
// and for matrix products of small integers
//
//   vb                         4 kWidth bytes: four of each 32-bit lane
//   load_bytes store_bytes set1_bytes   as said; repeat16 repeats 16 bytes
//   shift_bytes<N>             right by N bits, left by -N; neighbours' bits may come in: mask
//   after lookup(table, index)       16-entry table, the same in every 16 bytes load_u8 load_i8
//   kWidth bytes as int32, as floats store_exact, ExactDot      activations of 16 bits, and dot
//   products of bytes with them
//
// and this file builds on them what is the same for all: exp, tanh, silu, gelu, f16 scalars, RMS,
// unroll.
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>

#define MINFER_QUOTE(...) #__VA_ARGS__
#define MINFER_HEADER_OF(isa) MINFER_QUOTE(simd_##isa.h)
#define MINFER_HEADER(isa) MINFER_HEADER_OF(isa)
#include MINFER_HEADER(MINFER_ISA)

namespace minfer::MINFER_ISA {

// f(0), ..., f(N - 1) with constants for arguments. Loops over arrays of vectors are written so,
// because GCC leaves an array in memory if the loops that index it are unrolled late.
#define MINFER_LAMBDA __attribute__((always_inline))
template <int N, typename F>
MINFER_FN void unroll(F&& f) {
    [&]<int... I>(std::integer_sequence<int, I...>) MINFER_LAMBDA {
        (f(std::integral_constant<int, I>{}), ...);
    }(std::make_integer_sequence<int, N>{});
}

// The compiler reads memory anew after this, instead of keeping registers busy with what it read.
MINFER_FN void forget_loads() { asm volatile("" ::: "memory"); }

// e^x to about one unit in the last place; 0 below -87.3, infinity above 88.7.
MINFER_FN vf exp_(vf x) {
    // x = n ln 2 + r with |r| <= ln(2) / 2; ln 2 in two parts, the first exact times any n here.
    // x comes second, so that a NaN stays one.
    const vf bounded = min(set1(89.0f), max(set1(-88.0f), x));
    const vi n = to_int(bounded * set1(1.44269504f));
    const vf nf = to_float(n);
    const vf r = fma(nf, set1(-1.42860677e-6f), fma(nf, set1(-0.693145752f), bounded));
    // Taylor's coefficients to degree 7: the remainder is below 6e-9 on this range.
    vf p = set1(1.0f / 5040);
    p = fma(p, r, set1(1.0f / 720));
    p = fma(p, r, set1(1.0f / 120));
    p = fma(p, r, set1(1.0f / 24));
    p = fma(p, r, set1(1.0f / 6));
    p = fma(p, r, set1(0.5f));
    p = fma(p, r * r, r) + set1(1.0f);
    // Two steps, since 2^128 and 2^-127 are no normal numbers.
    const vi half = shift_right<1>(n);
    vf y = scale_pow2(scale_pow2(p, half), n - half);
    y = select(less(x, set1(-87.336544f)), set1(0.0f), y);
    return select(less(set1(88.722839f), x), set1(__builtin_inff()), y);
}

// tanh x to about two units in the last place.
MINFER_FN vf tanh_(vf x) {
    const vf a = abs_(x);
    // Near 0 the exponential form cancels: x + x^3 q(x^2), coefficients of the Cephes library.
    const vf s = x * x;
    vf q = set1(-5.70498872745e-3f);
    q = fma(q, s, set1(2.06390887954e-2f));
    q = fma(q, s, set1(-5.37397155531e-2f));
    q = fma(q, s, set1(1.33314422036e-1f));
    q = fma(q, s, set1(-3.33332819422e-1f));
    const vf near = fma(q * s, x, x);
    const vf far = set1(1.0f) - set1(2.0f) / (exp_(a + a) + set1(1.0f));
    return select(less(a, set1(0.625f)), near, select(less(x, set1(0.0f)), set1(0.0f) - far, far));
}

// x / (1 + e^-x).
MINFER_FN vf silu(vf x) { return x / (set1(1.0f) + exp_(set1(0.0f) - x)); }

// The tanh approximation of GELU; 1 + tanh(u) = 2 / (1 + e^(-2u)).
MINFER_FN vf gelu(vf x) {
    const vf u = x * fma(x * x, set1(0.0356774081f), set1(0.797884561f));
    return x / (set1(1.0f) + exp_(u * set1(-2.0f)));
}

MINFER_FN float as_float(uint32_t bits) {
    float x;
    std::memcpy(&x, &bits, 4);
    return x;
}

MINFER_FN uint32_t as_bits(float x) {
    uint32_t bits;
    std::memcpy(&bits, &x, 4);
    return bits;
}

// One f16 as f32, exactly.
MINFER_FN float from_f16(uint16_t h) {
    const uint32_t sign = uint32_t(h & 0x8000) << 16;
    const uint32_t rest = h & 0x7fff;
    // Normal numbers move 13 places and their exponent by 112; subnormal ones are whole 2^-24ths.
    if (rest >= 0x7c00) return as_float(sign | 0x7f800000 | (rest & 0x3ff) << 13);
    if (rest >= 0x0400) return as_float(sign | ((rest << 13) + (112u << 23)));
    const float tiny = float(rest) * 5.9604644775390625e-8f;
    return as_float(sign | as_bits(tiny));
}

MINFER_FN float from_bf16(uint16_t b) { return as_float(uint32_t(b) << 16); }

// Sum of squares of n floats, in an order that depends on n alone.
MINFER_FN float sum_squares(const float* x, int64_t n) {
    vf a = set1(0.0f), b = a;
    int64_t i = 0;
    for (; i + 2 * kWidth <= n; i += 2 * kWidth) {
        const vf u = load(x + i), v = load(x + i + kWidth);
        a = fma(u, u, a);
        b = fma(v, v, b);
    }
    for (; i < n; i += kWidth) {
        const vf u = n - i < kWidth ? load_n(x + i, int(n - i)) : load(x + i);
        a = fma(u, u, a);
    }
    return sum(a + b);
}

// 1 / sqrt(mean(x^2) + eps): the factor of an RMS norm.
MINFER_FN float inverse_rms(const float* x, int64_t n, float eps) {
    return 1.0f / __builtin_sqrtf(sum_squares(x, n) / float(n) + eps);
}

}  // namespace minfer::MINFER_ISA
