// The arguments of every kernel, and the table that each instruction set fills with its versions.
//
// Buffers are token-major f32, `[places][features]`, without gaps. `places` and which of them are
// real is `rows`' business.
#pragma once

#include <cstdint>

#include "kv_state.h"
#include "matmul.h"
#include "rows.h"
#include "team.h"

namespace minfer {

// y = x / sqrt(mean(x^2) + eps) * weight + residual, over `groups` of `width` features a row.
struct RmsNormArgs {
    Rows rows;
    const float* x;
    const float* weight;    // [width]
    const float* residual;  // as y, or null
    float* y;
    int64_t groups;
    int64_t width;
    float eps;
};

enum class Elementwise : int32_t { add, mul, scale, softcap, silu_gated, gelu_gated };

// y = op(a, b): a + b, a * b, factor * a, factor * tanh(a / factor), act(a) * b.
struct ElementwiseArgs {
    Rows rows;
    Elementwise op;
    const float* a;
    const float* b;
    float* y;
    int64_t width;
    float factor;
};

// y[i] = x[index[i]]
struct GatherArgs {
    Rows rows;
    const float* x;
    const int32_t* index;
    float* y;
    int64_t n_rows;  // of x
    int64_t width;
    Fault* fault;
};

// y[i] = scale * dequantized table[ids[i]]
struct EmbedArgs {
    Rows rows;
    const uint8_t* table;  // as the file has it
    Format format;
    int64_t row_bytes;
    int64_t n_rows;
    const int32_t* ids;
    float* y;
    int64_t width;
    float scale;
    Fault* fault;
};

// table[i] = cos and sin of position[i] * inv_freq, times magnitude: [places][2][n_pairs]
struct RopeTableArgs {
    Rows rows;
    const int32_t* positions;
    const double* inv_freq;
    int64_t n_pairs;
    double magnitude;
    float* table;
};

// The rotation of heads by a RopeTable: pairs (j, j + n_pairs), or (2j, 2j + 1) if interleaved.
struct Rotation {
    const float* table;
    int64_t n_pairs;
    bool interleaved;
};

struct RopeArgs {
    Rows rows;
    const float* x;
    float* y;
    Rotation rotation;
    int64_t n_heads;
    int64_t head_dim;
};

// Store rows of k and v into their cells.
struct KVStoreArgs {
    Rows rows;
    const float* k;
    const float* v;
    const int32_t* cells;
    KVState kv;
    Fault* fault;
};

// What follows the Q, K and V products: per-head norm (optional), rotation of q in place and of k,
// and the store of k and v.
struct QKVTailArgs {
    Rows rows;
    float* q;
    float* k;
    const float* v;
    const int32_t* cells;
    const float* q_norm;  // [head_dim] or null
    const float* k_norm;
    float eps;
    Rotation rotation;
    int64_t n_heads;
    KVState kv;
    Fault* fault;
};

struct AttentionArgs {
    Rows rows;
    const float* q;
    float* y;
    const int32_t* positions;
    const int32_t* seqs;
    const int32_t* page_table;  // [n_slots][max_pages]
    int64_t n_slots;
    int64_t max_pages;
    KVState kv;
    int64_t n_heads;
    float scale;
    int64_t window;  // 0: none
    float softcap;   // 0: none
    bool rounded;    // whether the products of other rows may be computed in bf16
    uint8_t* scratch;  // `attention_*_scratch_bytes`
    Queue* queue;
    Fault* fault;
};

// Keys of a work item of a single row: fixed, so that a row's result depends on nothing else.
constexpr int64_t kChunk = 128;

// Every product of `m` for all real rows, each by its path.
struct MatMulArgs {
    Rows rows;
    MatMul m;
};

struct PackArgs {
    Format format;
    int64_t n_in;
    int64_t n_out;
    const uint8_t* gguf;
    uint8_t* packed;
};

constexpr int64_t kMaxHeadDim = 512;  // kernels keep a head on the stack

template <class Args>
using Kernel = void (*)(const Args&, const Lane&);

struct Kernels {
    Kernel<RmsNormArgs> rms_norm;
    Kernel<ElementwiseArgs> elementwise;
    Kernel<GatherArgs> gather;
    Kernel<EmbedArgs> embed;
    Kernel<RopeTableArgs> rope_table;
    Kernel<RopeArgs> rope;
    Kernel<KVStoreArgs> kv_store;
    Kernel<QKVTailArgs> qkv_tail;
    Kernel<AttentionArgs> attention_single;
    Kernel<AttentionArgs> attention_combine;
    Kernel<AttentionArgs> attention_other;
    size_t (*attention_single_scratch_bytes)(const AttentionArgs&);
    size_t (*attention_other_scratch_bytes)(const AttentionArgs&, int lanes);
    Kernel<MatMulArgs> matmul;
    Kernel<PackArgs> pack;
    size_t (*packed_bytes)(Format format, int64_t n_in, int64_t n_out);
    size_t (*matmul_scratch_bytes)(const MatMulArgs&, int lanes);
};

}  // namespace minfer
