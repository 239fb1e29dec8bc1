// Rotary embedding, the store into the KV cache, and both fused behind the QKV product. A work item
// is one head of one row.
#include <cmath>

#include "head_ops.h"
#include "kernels.h"
#include "simd.h"

namespace minfer::MINFER_ISA {
namespace {

const float* row_table(const Rotation& rotation, int64_t row) {
    return rotation.table + row * 2 * rotation.n_pairs;
}

// A negative cell stores nowhere; one past the end is a fault.
bool stores(const KVState& kv, int64_t cell, Fault* fault) {
    return cell >= 0 && fault->check("kv_store: cell", cell, kv.n_pages * kPage);
}

}  // namespace

void rope_table(const RopeTableArgs& a, const Lane& lane) {
    const RealRows rows = a.rows.real();
    const Range share = lane.share(rows.total());
    for (int64_t i = share.begin; i < share.end; ++i) {
        const int64_t row = rows.place(i);
        float* out = a.table + row * 2 * a.n_pairs;
        for (int64_t j = 0; j < a.n_pairs; ++j) {
            // In double: at position 100,000 a float angle would be off by 0.004.
            const double angle = double(a.positions[row]) * a.inv_freq[j];
            out[j] = float(std::cos(angle) * a.magnitude);
            out[a.n_pairs + j] = float(std::sin(angle) * a.magnitude);
        }
    }
}

void rope(const RopeArgs& a, const Lane& lane) {
    const RealRows rows = a.rows.real();
    const Range share = lane.share(rows.total() * a.n_heads);
    for (int64_t i = share.begin; i < share.end; ++i) {
        const int64_t row = rows.place(i / a.n_heads), head = i % a.n_heads;
        const int64_t at = (row * a.n_heads + head) * a.head_dim;
        rotate_head(a.x + at, a.y + at, a.head_dim, a.rotation, row_table(a.rotation, row));
    }
}

void kv_store(const KVStoreArgs& a, const Lane& lane) {
    const RealRows rows = a.rows.real();
    const int64_t heads = a.kv.n_kv_heads;
    const Range share = lane.share(rows.total() * heads);
    for (int64_t i = share.begin; i < share.end; ++i) {
        const int64_t row = rows.place(i / heads), head = i % heads, cell = a.cells[row];
        if (!stores(a.kv, cell, a.fault)) continue;
        const int64_t at = (row * heads + head) * a.kv.head_dim;
        store_k(a.kv, cell, head, a.k + at);
        store_v(a.kv, cell, head, a.v + at);
    }
}

void qkv_tail(const QKVTailArgs& a, const Lane& lane) {
    const RealRows rows = a.rows.real();
    const int64_t heads = a.n_heads + a.kv.n_kv_heads, head_dim = a.kv.head_dim;
    const Range share = lane.share(rows.total() * heads);
    for (int64_t i = share.begin; i < share.end; ++i) {
        const int64_t row = rows.place(i / heads), head = i % heads;
        const bool is_q = head < a.n_heads;
        const int64_t kv_head = head - a.n_heads;
        float* x = is_q ? a.q + (row * a.n_heads + head) * head_dim
                        : a.k + (row * a.kv.n_kv_heads + kv_head) * head_dim;
        const float* norm = is_q ? a.q_norm : a.k_norm;
        if (norm) norm_row(x, norm, x, head_dim, a.eps);
        rotate_head(x, x, head_dim, a.rotation, row_table(a.rotation, row));
        if (is_q || !stores(a.kv, a.cells[row], a.fault)) continue;
        store_k(a.kv, a.cells[row], kv_head, x);
        store_v(a.kv, a.cells[row], kv_head,
                a.v + (row * a.kv.n_kv_heads + kv_head) * head_dim);
    }
}

}  // namespace minfer::MINFER_ISA
