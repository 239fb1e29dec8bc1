// Quantized weights times 16-bit activations, exact up to f32 rounding of each group's sum.
//
//   y[r][c] = scale[r] * sum over groups g of
//               scale[g][c] * sum_k (code[k][c] - offset) a[r][k]  +  minimum[g][c] * sum_k a[r][k]
//
// The inner sums are integers below 2^29. Codes are unpacked once for all rows of the tile; the
// offset is paid by where the integer sum starts.

#include "matmul_codes.h"
#include "matmul_gguf.h"
#include "matmul_tiles.h"
#include "simd.h"

namespace minfer::MINFER_ISA {

namespace {

// The group that starts at input 4 * Begin of a chunk of 32.
template <Format F, int R, int Begin>
MINFER_FN void add_group(const PanelReader<F>& panel, int chunk, const uint8_t* data,
                         const int32_t* sums, vf (&acc)[R][kParts]) {
    constexpr Traits t = traits(F);
    constexpr int offset = t.offset - ExactDot::kCodeShift;
    const int group = (chunk * 32 + 4 * Begin) / t.group;
    int32_t sum[R];
    unroll<R>([&](auto r) MINFER_LAMBDA {
        sum[r] = t.group == 16 ? sums[2 * r + Begin / 4] : sums[2 * r] + sums[2 * r + 1];
    });
    unroll<kParts>([&](auto part) MINFER_LAMBDA {
        ExactDot dots[R];
        unroll<R>([&](auto r) MINFER_LAMBDA { dots[r].start(-offset * sum[r]); });
        unroll<t.group / 4>([&](auto i) MINFER_LAMBDA {
            constexpr int plane = Begin + i;
            const auto codes = ExactDot::prepare(panel.template code<plane>(chunk, part));
            unroll<R>([&](auto r) MINFER_LAMBDA {
                dots[r].template add<plane>(codes, data + r * 64);
            });
        });
        const vf scale = panel.scale(group, part);
        unroll<R>([&](auto r) MINFER_LAMBDA {
            acc[r][part] = fma(scale, to_float(dots[r].total()), acc[r][part]);
        });
        if constexpr (t.minimum) {
            const vf minimum = panel.minimum(group, part);
            unroll<R>([&](auto r) MINFER_LAMBDA {
                acc[r][part] = fma(minimum, to_float(iset1(sum[r])), acc[r][part]);
            });
        }
    });
}

template <Format F, int R>
void multiply(const uint8_t* panel, int64_t n_in, const uint8_t* tile, float* out, int64_t stride) {
    constexpr Traits t = traits(F);
    const ExactTile a(tile, n_in, R);
    const uint8_t* data = a.data;
    const int32_t* sums = a.sums;
    vf acc[R][kParts];
    unroll<R * kParts>([&](auto i) MINFER_LAMBDA { acc[i / kParts][i % kParts] = set1(0.0f); });
    for (int64_t i = 0; i < n_in / t.block; ++i, panel += BlockLayout(t).bytes) {
        const PanelReader<F> reader(panel);
        for (int chunk = 0; chunk < t.block / 32; ++chunk) {
            add_group<F, R, 0>(reader, chunk, data, sums, acc);
            if constexpr (t.group == 16) add_group<F, R, 4>(reader, chunk, data, sums, acc);
            data += R * 64;
            sums += R * 2;
        }
    }
    unroll<R>([&](auto r) MINFER_LAMBDA {
        unroll<kParts>([&](auto part) MINFER_LAMBDA {
            store(out + r * stride + part * kWidth, acc[r][part] * set1(a.scales[r]));
        });
    });
}

template <Format F>
struct Kernel {
    template <int R>
    struct Rows {
        static constexpr TileKernel run = multiply<F, R>;
    };
};

}  // namespace

TileKernel exact_kernel(Format format, int rows) {
    TileKernel found = nullptr;
    with_quantized(format, [&]<Format F>() { found = kernel_of<Kernel<F>::template Rows>(rows); });
    return found;
}

}  // namespace minfer::MINFER_ISA
