// What happens to one head of q, k or v: norm, rotation, the store into its cell. The separate and
// the fused kernels call the same functions, so they agree bit for bit. For kernel files only.
#pragma once

#include "hadamard.h"
#include "kernels.h"
#include "simd.h"

namespace minfer::MINFER_ISA {

// y = x / sqrt(mean(x^2) + eps) * weight; y may be x.
MINFER_FN void norm_row(const float* x, const float* weight, float* y, int64_t n, float eps) {
    const vf factor = set1(inverse_rms(x, n, eps));
    int64_t i = 0;
    for (; i + kWidth <= n; i += kWidth) store(y + i, load(x + i) * factor * load(weight + i));
    if (i < n) {
        const int rest = int(n - i);
        store_n(y + i, load_n(x + i, rest) * factor * load_n(weight + i, rest), rest);
    }
}

// Rotate a head; y may be x. `table` is the row's cosines, then its sines.
MINFER_FN void rotate_head(const float* x, float* y, int64_t head_dim, const Rotation& rotation,
                           const float* table) {
    const int64_t n = rotation.n_pairs;
    const float* cosine = table;
    const float* sine = table + n;
    if (rotation.interleaved) {
        for (int64_t j = 0; j < n; ++j) {
            const float a = x[2 * j], b = x[2 * j + 1];
            y[2 * j] = a * cosine[j] - b * sine[j];
            y[2 * j + 1] = a * sine[j] + b * cosine[j];
        }
    } else {
        for (int64_t j = 0; j < n; j += kWidth) {
            const int count = int(n - j < kWidth ? n - j : kWidth);
            const vf a = load_n(x + j, count), b = load_n(x + n + j, count);
            const vf c = load_n(cosine + j, count), s = load_n(sine + j, count);
            store_n(y + j, a * c - b * s, count);
            store_n(y + n + j, a * s + b * c, count);
        }
    }
    if (y != x) {
        for (int64_t d = 2 * n; d < head_dim; ++d) y[d] = x[d];
    }
}

MINFER_FN uint16_t to_f16(float x) {
    uint16_t half[kWidth];
    store_f16(half, set1(x));
    return half[0];
}

// One q8_0 block: the f16 scale, and n int8 values `stride` apart.
MINFER_FN uint16_t quantize_block(const float* x, int64_t n, int8_t* out, int64_t stride) {
    float largest = 0;
    for (int64_t i = 0; i < n; ++i) {
        const float a = __builtin_fabsf(x[i]);
        largest = a > largest ? a : largest;
    }
    const uint16_t scale = to_f16(largest / 127.0f);
    const float value = from_f16(scale);
    const vf inverse = set1(value > 0 ? 1.0f / value : 0.0f);
    for (int64_t i = 0; i < n; i += kWidth) {
        // The scale was rounded: the largest value may come out a little above 127.
        const vf bounded = max(min(load(x + i) * inverse, set1(127.0f)), set1(-127.0f));
        int32_t q[kWidth];
        const vi rounded = to_int(bounded);
        std::memcpy(q, &rounded, sizeof q);
        for (int j = 0; j < kWidth; ++j) out[(i + j) * stride] = int8_t(q[j]);
    }
    return scale;
}

MINFER_FN void store_k(const KVState& kv, int64_t cell, int64_t head, const float* x) {
    uint8_t* block = kv.k(cell / kPage, head);
    const int64_t tile = cell % kPage / kTile, slot = cell % kTile, head_dim = kv.head_dim;
    switch (kv.type) {
        case KVType::f32: {
            float* out = reinterpret_cast<float*>(block) + tile * head_dim * kTile + slot;
            for (int64_t d = 0; d < head_dim; ++d) out[d * kTile] = x[d];
            break;
        }
        case KVType::f16: {
            uint16_t half[kMaxHeadDim];
            for (int64_t d = 0; d < head_dim; d += kWidth) store_f16(half + d, load(x + d));
            uint16_t* out = reinterpret_cast<uint16_t*>(block) + tile * head_dim * kTile + slot;
            for (int64_t d = 0; d < head_dim; ++d) out[d * kTile] = half[d];
            break;
        }
        case KVType::q8_0: {
            float rotated[kMaxHeadDim];
            std::memcpy(rotated, x, size_t(head_dim) * sizeof(float));
            rotate_blocks(rotated, head_dim);
            uint8_t* start = block + tile * kTile * (head_dim + 2 * kv.blocks());
            auto* scales = reinterpret_cast<uint16_t*>(start);
            auto* out = reinterpret_cast<int8_t*>(start + kv.blocks() * kTile * 2);
            for (int64_t d = 0; d < head_dim; d += kQuant) {
                const int64_t n = head_dim - d < kQuant ? head_dim - d : kQuant;
                scales[d / kQuant * kTile + slot] =
                    quantize_block(rotated + d, n, out + d * kTile + slot, kTile);
            }
            break;
        }
    }
}

MINFER_FN void store_v(const KVState& kv, int64_t cell, int64_t head, const float* x) {
    uint8_t* block = kv.v(cell / kPage, head);
    const int64_t slot = cell % kPage, head_dim = kv.head_dim;
    switch (kv.type) {
        case KVType::f32:
            std::memcpy(reinterpret_cast<float*>(block) + slot * head_dim, x,
                        size_t(head_dim) * sizeof(float));
            break;
        case KVType::f16: {
            uint16_t* out = reinterpret_cast<uint16_t*>(block) + slot * head_dim;
            for (int64_t d = 0; d < head_dim; d += kWidth) store_f16(out + d, load(x + d));
            break;
        }
        case KVType::q8_0: {
            auto* scales = reinterpret_cast<uint16_t*>(block) + slot * kv.blocks();
            auto* out = reinterpret_cast<int8_t*>(block + kPage * kv.blocks() * 2);
            for (int64_t d = 0; d < head_dim; d += kQuant) {
                const int64_t n = head_dim - d < kQuant ? head_dim - d : kQuant;
                scales[d / kQuant] = quantize_block(x + d, n, out + slot * head_dim + d, 1);
            }
            break;
        }
    }
}

}  // namespace minfer::MINFER_ISA
