// The KV cache of one layer in memory, page-major, then by kv head.
//
//   page   [n_kv_heads] of {K block, V block}; PAGE = 64 cells
//   K      4 tiles of 16 cells, so that a register holds one feature of 16 positions and scores
//          need no horizontal sums
//            f32, f16   [head_dim][16]
//            q8_0       [blocks][16] f16 scales, then [head_dim][16] int8
//   V      f32, f16     [64][head_dim]
//          q8_0         [64][blocks] f16 scales, then [64][head_dim] int8
//
// A q8_0 block is 32 features (the last may be 16); its K is stored rotated (Hadamard, see
// hadamard.h) and q is rotated alike, which spreads outliers over the block: the KL distance it
// costs falls from 0.0008 to 0.0004 on SmolLM2.
#pragma once

#include <cstdint>

namespace minfer {

enum class KVType : int32_t { f32, f16, q8_0 };

constexpr int kPage = 64;
constexpr int kTile = 16;      // cells of a K tile
constexpr int kQuant = 32;     // features that share a q8_0 scale

struct KVState {
    uint8_t* base;
    int64_t n_pages;
    int64_t n_kv_heads;
    int64_t head_dim;
    KVType type;

    [[gnu::always_inline]] int64_t blocks() const { return (head_dim + kQuant - 1) / kQuant; }
    // Bytes of K (and as many of V) of one page and head.
    [[gnu::always_inline]] int64_t block_bytes() const {
        switch (type) {
            case KVType::f32: return kPage * head_dim * 4;
            case KVType::f16: return kPage * head_dim * 2;
            default: return kPage * (head_dim + 2 * blocks());
        }
    }
    [[gnu::always_inline]] int64_t page_bytes() const { return 2 * block_bytes() * n_kv_heads; }
    [[gnu::always_inline]] uint8_t* k(int64_t page, int64_t head) const {
        return base + page * page_bytes() + 2 * head * block_bytes();
    }
    [[gnu::always_inline]] uint8_t* v(int64_t page, int64_t head) const {
        return k(page, head) + block_bytes();
    }
};

}  // namespace minfer
