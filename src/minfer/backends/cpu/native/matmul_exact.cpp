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

// Registers of columns in flight: all of a panel for few rows, so that it is read in one pass, one
// for more rows, whose sums fill the registers of the narrower sets.
constexpr int parts_at_once(int rows) { return rows <= 2 ? kParts : 1; }

// The group that starts at input 4 * Begin of a chunk of 32, for one register of columns.
template <Format F, int R, int Begin>
MINFER_FN void add_group(const PanelReader<F>& panel, int chunk, const uint8_t* data,
                         const int32_t* sums, vf (&acc)[R]) {
    constexpr Traits t = traits(F);
    constexpr int offset = t.offset - ExactDot::kCodeShift;
    const int group = (chunk * 32 + 4 * Begin) / t.group;
    int32_t sum[R];
    ExactDot dots[R];
    unroll<R>([&](auto r) MINFER_LAMBDA {
        sum[r] = t.group == 16 ? sums[2 * r + Begin / 4] : sums[2 * r] + sums[2 * r + 1];
        dots[r].start(-offset * sum[r]);
    });
    unroll<t.group / 4>([&](auto i) MINFER_LAMBDA {
        // Inputs t and t + 4 share a plane of nibbles: one after the other, to drop it early.
        constexpr int plane = t.group == 32 ? i % 2 * 4 + i / 2 : Begin + i;
        const auto codes = ExactDot::prepare(panel.template code<plane>(chunk));
        unroll<R>([&](auto r) MINFER_LAMBDA {
            dots[r].template add<plane>(codes, data + r * 64);
        });
        if constexpr (kWidth == 8) forget_loads();  // AVX2 has 16 registers, all in use
    });
    const vf scale = panel.scale(group);
    unroll<R>([&](auto r)
                  MINFER_LAMBDA { acc[r] = fma(scale, to_float(dots[r].total()), acc[r]); });
    if constexpr (t.minimum) {
        const vf minimum = panel.minimum(group);
        unroll<R>([&](auto r) MINFER_LAMBDA {
            acc[r] = fma(minimum, to_float(iset1(sum[r])), acc[r]);
        });
    }
    forget_loads();
}

template <Format F, int R>
void multiply(const uint8_t* panel, int64_t ahead, int64_t n_in, const uint8_t* tile, float* out,
              int64_t stride) {
    constexpr Traits t = traits(F);
    constexpr int together = parts_at_once(R);
    const ExactTile a(tile, n_in, R);
    for (int first = 0; first < kParts; first += together) {
        const uint8_t* data = a.data;
        const int32_t* sums = a.sums;
        vf acc[together][R];
        unroll<together * R>([&](auto i) MINFER_LAMBDA { acc[i / R][i % R] = set1(0.0f); });
        const uint8_t* block = panel;
        for (int64_t i = 0; i < n_in / t.block; ++i, block += BlockLayout(t).bytes) {
            prefetch(block + ahead, BlockLayout(t).bytes);
            for (int chunk = 0; chunk < t.block / 32; ++chunk, data += R * 64, sums += R * 2) {
                unroll<together>([&](auto part) MINFER_LAMBDA {
                    const PanelReader<F> reader{block, first + part};
                    add_group<F, R, 0>(reader, chunk, data, sums, acc[part]);
                    if constexpr (t.group == 16) {
                        add_group<F, R, 4>(reader, chunk, data, sums, acc[part]);
                    }
                });
            }
        }
        unroll<R>([&](auto r) MINFER_LAMBDA {
            unroll<together>([&](auto part) MINFER_LAMBDA {
                store(out + r * stride + (first + part) * kWidth, acc[part][r] * set1(a.scales[r]));
            });
        });
    }
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
