// The exponential of attention's softmax. For kernel files only.
//
// Scores are kept in units of log 2 (the factor goes into q), so that weights are powers of two.
#pragma once

#include "simd.h"

namespace minfer::MINFER_ISA {

constexpr float kLog2e = 1.44269504f;
constexpr float kMasked = -__builtin_inff();

// 2^x for x <= 0, to 1.6e-7; exactly 1 at 0, exactly 0 below -126 (a masked score).
MINFER_FN vf exp2_(vf x) {
    const vf bounded = max(set1(-126.0f), x);
    const vi n = to_int(bounded);
    const vf r = bounded - to_float(n);
    // Minimax polynomial on [-0.5, 0.5], relative error 9e-8, value 1 at 0.
    vf p = set1(0.00132647273f);
    p = fma(p, r, set1(0.00967151299f));
    p = fma(p, r, set1(0.0555073358f));
    p = fma(p, r, set1(0.240222424f));
    p = fma(p, r, set1(0.693147004f));
    p = fma(p, r, set1(1.0f));
    return select(less(x, set1(-126.0f)), set1(0.0f), scale_pow2(p, n));
}

// Factor on q that gives scores their unit.
MINFER_FN float query_factor(float scale, float softcap) {
    return softcap > 0 ? scale : scale * kLog2e;
}

// Caps scores made with `query_factor`.
MINFER_FN vf cap(vf score, float softcap) {
    return tanh_(score * set1(1.0f / softcap)) * set1(softcap * kLog2e);
}

}  // namespace minfer::MINFER_ISA
