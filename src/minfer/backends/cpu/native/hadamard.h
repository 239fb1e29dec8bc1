// The rotation of q and K under a q8_0 cache: the orthonormal Hadamard transform of each block of
// 32 features (16 for a shorter last one). Rotating both leaves q.k as it is, but spreads a block's
// outliers over its 8-bit values. For kernel files only.
#pragma once

#include "kv_state.h"
#include "simd.h"

namespace minfer::MINFER_ISA {

// In place; n is a power of two.
MINFER_FN void hadamard(float* x, int64_t n) {
    for (int64_t half = 1; half < n; half *= 2) {
        for (int64_t i = 0; i < n; i += 2 * half) {
            for (int64_t j = i; j < i + half; ++j) {
                const float a = x[j], b = x[j + half];
                x[j] = a + b;
                x[j + half] = a - b;
            }
        }
    }
    const float norm = 1.0f / __builtin_sqrtf(float(n));
    for (int64_t i = 0; i < n; ++i) x[i] *= norm;
}

// All blocks of a head.
MINFER_FN void rotate_blocks(float* x, int64_t head_dim) {
    for (int64_t d = 0; d < head_dim; d += kQuant) {
        hadamard(x + d, head_dim - d < kQuant ? head_dim - d : kQuant);
    }
}

}  // namespace minfer::MINFER_ISA
