// Reading features of the KV cache as floats, whatever its type. For kernel files only.
#pragma once

#include "kv_state.h"
#include "simd.h"

namespace minfer::MINFER_ISA {

// One f16 in every lane, as floats.
MINFER_FN vf set1_f16(uint16_t h) {
#if defined(MINFER_ISA_avx512)
    return _mm512_cvtph_ps(_mm256_set1_epi16(int16_t(h)));
#elif defined(MINFER_ISA_avx2)
    return _mm256_cvtph_ps(_mm_set1_epi16(int16_t(h)));
#else
    return set1(from_f16(h));
#endif
}

// A tile of K: 16 positions, `head_dim` features. `feature` gives kWidth of the positions, from
// `at` on, times `scale`, which is that of the feature's block of kQuant where the type has one.
template <KVType type>
struct KTile;

template <>
struct KTile<KVType::f32> {
    const float* data;
    MINFER_FN static KTile at(const uint8_t* k, int64_t head_dim, int64_t tile) {
        return {reinterpret_cast<const float*>(k) + tile * head_dim * kTile};
    }
    MINFER_FN vf scale(int64_t, int) const { return set1(1.0f); }
    MINFER_FN vf feature(int64_t d, int at, vf) const { return load(data + d * kTile + at); }
};

template <>
struct KTile<KVType::f16> {
    const uint16_t* data;
    MINFER_FN static KTile at(const uint8_t* k, int64_t head_dim, int64_t tile) {
        return {reinterpret_cast<const uint16_t*>(k) + tile * head_dim * kTile};
    }
    MINFER_FN vf scale(int64_t, int) const { return set1(1.0f); }
    MINFER_FN vf feature(int64_t d, int at, vf) const {
        return load_f16(data + d * kTile + at);
    }
};

template <>
struct KTile<KVType::q8_0> {
    const uint16_t* scales;  // [blocks][16]
    const uint8_t* data;
    MINFER_FN static KTile at(const uint8_t* k, int64_t head_dim, int64_t tile) {
        const int64_t blocks = (head_dim + kQuant - 1) / kQuant;
        const uint8_t* start = k + tile * kTile * (head_dim + 2 * blocks);
        return {reinterpret_cast<const uint16_t*>(start),
                start + blocks * kTile * 2};
    }
    MINFER_FN vf scale(int64_t block, int at) const {
        return load_f16(scales + block * kTile + at);
    }
    MINFER_FN vf feature(int64_t d, int at, vf scale) const {
        return load_i8(data + d * kTile + at) * scale;
    }
};

// V of one page and head: 64 positions of `head_dim` features.
template <KVType type>
struct VBlock;

template <>
struct VBlock<KVType::f32> {
    const float* data;
    int64_t head_dim;
    MINFER_FN static VBlock at(const uint8_t* v, int64_t head_dim) {
        return {reinterpret_cast<const float*>(v), head_dim};
    }
    MINFER_FN vf features(int64_t j, int64_t d) const { return load(data + j * head_dim + d); }
};

template <>
struct VBlock<KVType::f16> {
    const uint16_t* data;
    int64_t head_dim;
    MINFER_FN static VBlock at(const uint8_t* v, int64_t head_dim) {
        return {reinterpret_cast<const uint16_t*>(v), head_dim};
    }
    MINFER_FN vf features(int64_t j, int64_t d) const {
        return load_f16(data + j * head_dim + d);
    }
};

template <>
struct VBlock<KVType::q8_0> {
    const uint16_t* scales;  // [64][blocks]
    const uint8_t* data;
    int64_t head_dim;
    int64_t blocks;
    MINFER_FN static VBlock at(const uint8_t* v, int64_t head_dim) {
        const int64_t blocks = (head_dim + kQuant - 1) / kQuant;
        return {reinterpret_cast<const uint16_t*>(v), v + kPage * blocks * 2, head_dim, blocks};
    }
    MINFER_FN vf features(int64_t j, int64_t d) const {
        // A register never spans two blocks: kWidth divides 16 and d is a multiple of it.
        return load_i8(data + j * head_dim + d) *
               set1_f16(scales[j * blocks + d / kQuant]);
    }
};

}  // namespace minfer::MINFER_ISA
