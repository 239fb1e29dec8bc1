// Matrix products y = x W^T with weights in any GGUF type: the door of this folder's matmul files.
//
//   pack        a GGUF matrix -> panels of 16 outputs (matmul_layout.h), about as large as the
//   file's matmul      rows of x -> rows of y: [RMS norm], quantize x once, multiply by up to three
//               matrices that share it, [bias, residual, gated product]
//   dequantize  rows of a GGUF matrix -> f32, bit for bit as `minfer.gguf` does (embeddings)
//
// Two paths. `single` is for decode rows: activations keep 16 bits, so quantizing them costs about
// 1e-4 of a row's largest value and nothing measurable in the logits, and weights stream at memory
// speed. `many` is for prefill: the fastest arithmetic whose error a model does not notice
// (`many_form` in matmul.cpp says which for each type and instruction set). Within a path
// every output element is computed by one lane in one order, whatever the other rows and the number
// of lanes: results are bitwise equal. Weights that are plain numbers are multiplied in f32 on
// both.
//
// Not here: which rows are real, threads, memory. The caller gives addresses and row ranges.
#pragma once

#include <cstddef>
#include <cstdint>

#include "formats.h"
#include "team.h"

namespace minfer {

// One matrix applied to the shared input.
struct Product {
    Format format;
    int64_t n_out;
    const uint8_t* packed;
    const float* bias = nullptr;      // [n_out]
    const float* residual = nullptr;  // [rows][n_out], added to the result; may be `out`
    float* out;                       // [rows][n_out]
};

enum class Gate : int32_t {
    none,
    silu,  // products are gate and up, out = act(gate) * up goes to the second's `out`
    gelu,  // the tanh approximation
};

struct MatMul {
    static constexpr int kMax = 3;

    int64_t n_in;
    const float* x;                      // [rows][n_in]
    const float* norm_weight = nullptr;  // with it, the input is x / sqrt(mean(x^2) + eps) * weight
    float norm_eps = 0;
    int n_products = 0;
    Product products[kMax];
    Gate gate = Gate::none;
    uint8_t* scratch = nullptr;  // 64-byte aligned; contents mean nothing between calls
};

}  // namespace minfer

#if defined(MINFER_ISA)
namespace minfer::MINFER_ISA {

// Bytes `pack` writes; the destination is 64-byte aligned. The same for every instruction set.
size_t packed_bytes(Format format, int64_t n_in, int64_t n_out);

// Repack a matrix [n_out][n_in]. All lanes call it; they share the panels. `n_in` must be a
// multiple of the type's block.
void pack(Format format, int64_t n_in, int64_t n_out, const uint8_t* gguf, uint8_t* packed,
          const Lane& lane);

// One row of a GGUF matrix as f32.
void dequantize(Format format, int64_t n_in, const uint8_t* gguf_row, float* out);

// Scratch a call needs for at most `rows` rows on the path. Reads formats, `n_in`, `n_out`, `gate`.
size_t single_scratch_bytes(const MatMul& m, int64_t rows, int lanes);
size_t many_scratch_bytes(const MatMul& m, int64_t rows, int lanes);

// Compute rows [first, first + rows) of every product. All lanes call with the same arguments;
// each returns when its own share is written, so pass a barrier before reading the results.
void matmul_single(const MatMul& m, int64_t first, int64_t rows, const Lane& lane);
void matmul_many(const MatMul& m, int64_t first, int64_t rows, const Lane& lane);

}  // namespace minfer::MINFER_ISA
#endif
