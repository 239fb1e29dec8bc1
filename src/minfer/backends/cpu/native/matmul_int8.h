// The many-rows path with VNNI: 8-bit activations with a scale for each 32 inputs, made faithful.
//
// Plain 8-bit activations cost too much (a KL distance of 0.004 on SmolLM2). Two remedies:
//
//   rotated  w.x = (1/n) (Hw).(Hx) with H the n-point Hadamard matrix of +-1 inside a scale group.
//            Rotated activations have no outliers, so 8 bits suffice (0.0008); rotated weights
//            stay whole numbers, and as long as n * 2^(bits - 1) <= 128 they fit 8 bits exactly:
//            16 points for 2, 3 and 4 bits, 8 for 5 bits and MXFP4, 4 for 6 bits.
//   wide     for 8-bit and IQ4 weights, which have no room to rotate: blocks of a row whose scale
//            stands out get a second term, 1/256 as large; the rest of the row has one.
//
// A panel pair (32 columns) is expanded for its lane into unsigned bytes, the (rotated) weight plus
// 128, and f32 scales and minimums, then swept over all tiles of 4 rows: 4 rows x 2 registers of
// columns keep the accumulators of a block and of the sum in registers. A minimum multiplies the
// block's sum of x, which is kept in f32.
#pragma once

#include "matmul_layout.h"
#include "matmul_tiles.h"

namespace minfer::MINFER_ISA {

constexpr int kInt8Rows = 4;  // rows of a tile
constexpr int kPair = 2;      // panels of a sweep

// 32 inputs of a tile's 4 rows.
struct alignas(16) RotatedBlock {
    int8_t data[8][kInt8Rows][4];
    float scale[kInt8Rows];
    int32_t bias[2][kInt8Rows];  // -128 times the sum of the data: whole block, first half
    float sum[2][kInt8Rows];     // of the inputs before rotation: whole block, first half
};

struct alignas(16) WideBlock {
    int8_t high[8][kInt8Rows][4];
    int8_t low[8][kInt8Rows][4];
    float scale[2][kInt8Rows];   // of `high` alone, of 256 high + low
    int32_t bias[2][kInt8Rows];  // -128 times the sum of high, of low
    int32_t has_low;         // whether any row has a second term
};

static_assert(tile_bytes(Form::wide, 32 * 4, 4) == 4 * sizeof(WideBlock));
static_assert(tile_bytes(Form::rotated16, 32 * 4, 4) == 4 * sizeof(RotatedBlock));

// Points of the Hadamard transform of a rotated form, 1 for the wide form.
constexpr int points(Form form) {
    switch (form) {
        case Form::rotated16: return 16;
        case Form::rotated8: return 8;
        case Form::rotated4: return 4;
        default: return 1;
    }
}

// Bytes of an expanded panel pair: codes, scales and minimums for as many as one for 16 inputs.
constexpr int64_t expanded_bytes(int64_t n_in) {
    return n_in * kPair * kPanel + 2 * (n_in / 16) * kPair * kPanel * int64_t(sizeof(float));
}

// Defined where kHasInt8.

// Prepare one tile of rows [0, rows), rows <= 4; the missing ones become zeros.
void prepare_int8(Form form, const float* x, int64_t n_in, int rows, const float* norm_weight,
                  float norm_eps, uint8_t* tile);

// Expand `panels` (1 or 2) panels that lie `stride` bytes apart; a missing one becomes zeros.
void expand_pair(Format format, int64_t n_in, const uint8_t* panel, int64_t stride, int panels,
                 uint8_t* expanded);

// out[r * stride + c] = the product of row r of a tile, all four, and column c of the pair.
void multiply_int8(Format format, int64_t n_in, const uint8_t* expanded, const uint8_t* tile,
                   float* out, int64_t stride);

}  // namespace minfer::MINFER_ISA
