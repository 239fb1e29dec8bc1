// The table of this instruction set's kernels.
#include "kernels.h"
#include "matmul.h"

namespace minfer::MINFER_ISA {

void attention_combine(const AttentionArgs&, const Lane&);
void attention_other(const AttentionArgs&, const Lane&);
void attention_single(const AttentionArgs&, const Lane&);
void elementwise(const ElementwiseArgs&, const Lane&);
void embed(const EmbedArgs&, const Lane&);
void gather(const GatherArgs&, const Lane&);
void kv_store(const KVStoreArgs&, const Lane&);
void qkv_tail(const QKVTailArgs&, const Lane&);
void rms_norm(const RmsNormArgs&, const Lane&);
void rope(const RopeArgs&, const Lane&);
void rope_table(const RopeTableArgs&, const Lane&);
size_t attention_single_scratch_bytes(const AttentionArgs&);
size_t attention_other_scratch_bytes(const AttentionArgs&, int lanes);

namespace {

void matmul(const MatMulArgs& a, const Lane& lane) {
    const RealRows rows = a.rows.real();
    if (rows.singles > 0) matmul_single(a.m, 0, rows.singles, lane);
    if (rows.singles > 0 && rows.others > 0) lane.sync();  // the two share the scratch
    if (rows.others > 0) matmul_many(a.m, rows.single_places, rows.others, lane);
}

size_t matmul_scratch_bytes(const MatMulArgs& a, int lanes) {
    const int64_t others = a.rows.places - a.rows.single_places;
    const size_t single =
        a.rows.single_places > 0 ? single_scratch_bytes(a.m, a.rows.single_places, lanes) : 0;
    const size_t many = others > 0 ? many_scratch_bytes(a.m, others, lanes) : 0;
    return single > many ? single : many;
}

void pack_all(const PackArgs& a, const Lane& lane) {
    pack(a.format, a.n_in, a.n_out, a.gguf, a.packed, lane);
}

}  // namespace

extern const Kernels kernels;
const Kernels kernels = {
    .rms_norm = rms_norm,
    .elementwise = elementwise,
    .gather = gather,
    .embed = embed,
    .rope_table = rope_table,
    .rope = rope,
    .kv_store = kv_store,
    .qkv_tail = qkv_tail,
    .attention_single = attention_single,
    .attention_combine = attention_combine,
    .attention_other = attention_other,
    .attention_single_scratch_bytes = attention_single_scratch_bytes,
    .attention_other_scratch_bytes = attention_other_scratch_bytes,
    .matmul = matmul,
    .pack = pack_all,
    .packed_bytes = packed_bytes,
    .matmul_scratch_bytes = matmul_scratch_bytes,
};

}  // namespace minfer::MINFER_ISA
