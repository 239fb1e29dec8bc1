// Norm, element-wise operations, and the choosing of rows.
#include "head_ops.h"
#include "kernels.h"
#include "matmul.h"
#include "simd.h"

namespace minfer::MINFER_ISA {
namespace {

constexpr int64_t kSpan = 64;  // features of a work item of element-wise operations

template <class F>
MINFER_FN void apply(const float* a, const float* b, float* y, int64_t n, F f) {
    int64_t i = 0;
    for (; i + kWidth <= n; i += kWidth) store(y + i, f(load(a + i), load(b + i)));
    if (i < n) {
        const int rest = int(n - i);
        store_n(y + i, f(load_n(a + i, rest), load_n(b + i, rest)), rest);
    }
}

}  // namespace

void rms_norm(const RmsNormArgs& a, const Lane& lane) {
    const RealRows rows = a.rows.real();
    const Range share = lane.share(rows.total() * a.groups);
    for (int64_t i = share.begin; i < share.end; ++i) {
        const int64_t at = (rows.place(i / a.groups) * a.groups + i % a.groups) * a.width;
        float* y = a.y + at;
        norm_row(a.x + at, a.weight, y, a.width, a.eps);
        if (a.residual) apply(y, a.residual + at, y, a.width, [](vf u, vf v) { return u + v; });
    }
}

void elementwise(const ElementwiseArgs& args, const Lane& lane) {
    const RealRows rows = args.rows.real();
    const int64_t spans = (args.width + kSpan - 1) / kSpan;
    const Range share = lane.share(rows.total() * spans);
    const vf factor = set1(args.factor), inverse = set1(1.0f / args.factor);
    for (int64_t i = share.begin; i < share.end; ++i) {
        const int64_t column = i % spans * kSpan, at = rows.place(i / spans) * args.width + column;
        const int64_t n = args.width - column < kSpan ? args.width - column : kSpan;
        const float* a = args.a + at;
        const float* b = (args.b ? args.b : args.a) + at;
        float* y = args.y + at;
        switch (args.op) {
            case Elementwise::add: apply(a, b, y, n, [](vf u, vf v) { return u + v; }); break;
            case Elementwise::mul: apply(a, b, y, n, [](vf u, vf v) { return u * v; }); break;
            case Elementwise::scale:
                apply(a, b, y, n, [=](vf u, vf) { return u * factor; });
                break;
            case Elementwise::softcap:
                apply(a, b, y, n, [=](vf u, vf) { return tanh_(u * inverse) * factor; });
                break;
            case Elementwise::silu_gated:
                apply(a, b, y, n, [](vf u, vf v) { return silu(u) * v; });
                break;
            case Elementwise::gelu_gated:
                apply(a, b, y, n, [](vf u, vf v) { return gelu(u) * v; });
                break;
        }
    }
}

void gather(const GatherArgs& a, const Lane& lane) {
    const RealRows rows = a.rows.real();
    const Range share = lane.share(rows.total());
    for (int64_t i = share.begin; i < share.end; ++i) {
        const int64_t row = rows.place(i), from = a.index[row];
        if (!a.fault->check("rows: index", from, a.n_rows)) continue;
        std::memcpy(a.y + row * a.width, a.x + from * a.width, size_t(a.width) * sizeof(float));
    }
}

void embed(const EmbedArgs& a, const Lane& lane) {
    const RealRows rows = a.rows.real();
    const Range share = lane.share(rows.total());
    for (int64_t i = share.begin; i < share.end; ++i) {
        const int64_t row = rows.place(i), id = a.ids[row];
        if (!a.fault->check("embed: token id", id, a.n_rows)) continue;
        float* y = a.y + row * a.width;
        dequantize(a.format, a.width, a.table + id * a.row_bytes, y);
        for (int64_t d = 0; d < a.width; ++d) y[d] *= a.scale;
    }
}

}  // namespace minfer::MINFER_ISA
