// Quantized weights times 16-bit activations for many rows, where there is no 8-bit path.
//
// The arithmetic of matmul_exact.cpp, bit for bit, with the unpacking taken out of the loop over
// rows: a panel is expanded once into the operands of the dot product and f32 scales and minimums.
// A tile's float sums live in its output, since the integer sums and operands take the registers.

#include "matmul_tiles.h"

#if !defined(MINFER_ISA_avx512)

#include "matmul_codes.h"
#include "matmul_gguf.h"
#include "simd.h"

namespace minfer::MINFER_ISA {

namespace {

using Operand = ExactDot::Operand;

// Registers of columns in flight: two of AVX2, whose operands come in halves; else one.
constexpr int kTogether = kParts == 2 ? 2 : 1;

// An expanded panel: [n_in / 4][kParts] operands, then [groups][16] scales, [groups][16] minimums.
struct Expanded {
    Operand* operands;
    float* scales;
    float* minimums;

    MINFER_FN Expanded(uint8_t* at, int64_t n_in)
        : operands(reinterpret_cast<Operand*>(at)),
          scales(reinterpret_cast<float*>(operands + n_in / 4 * kParts)),
          minimums(scales + n_in / 16 * kPanel) {}
};

template <Format F>
void expand(int64_t n_in, const uint8_t* panel, Expanded out) {
    constexpr Traits t = traits(F);
    for (int64_t i = 0; i < n_in / t.block; ++i, panel += BlockLayout(t).bytes) {
        for (int part = 0; part < kParts; ++part) {
            const PanelReader<F> reader{panel, part};
            for (int chunk = 0; chunk < t.block / 32; ++chunk) {
                unroll<8>([&](auto plane) MINFER_LAMBDA {
                    out.operands[(chunk * 8 + plane) * kParts + part] =
                        ExactDot::prepare(reader.template code<plane>(chunk));
                });
            }
            for (int g = 0; g < t.block / t.group; ++g) {
                store(out.scales + g * kPanel + part * kWidth, reader.scale(g));
                if constexpr (t.minimum) {
                    store(out.minimums + g * kPanel + part * kWidth, reader.minimum(g));
                }
            }
        }
        out.operands += t.block / 4 * kParts;
        out.scales += t.block / t.group * kPanel;
        out.minimums += t.block / t.group * kPanel;
    }
}

// One group of `Planes` planes from plane Begin of a chunk on, for kTogether registers of columns.
template <int R, int Begin, int Planes, bool Minimum>
MINFER_FN void add_group(const Operand* operands, const float* scales, const float* minimums,
                         const uint8_t* data, const int32_t* sums, int offset, float* out,
                         int64_t stride) {
    ExactDot dots[R][kTogether];
    int32_t sum[R];
    unroll<R>([&](auto r) MINFER_LAMBDA {
        sum[r] = Planes == 4 ? sums[2 * r + Begin / 4] : sums[2 * r] + sums[2 * r + 1];
        unroll<kTogether>([&](auto p) MINFER_LAMBDA { dots[r][p].start(-offset * sum[r]); });
    });
    unroll<Planes>([&](auto i) MINFER_LAMBDA {
        constexpr int plane = Begin + i;
        unroll<R>([&](auto r) MINFER_LAMBDA {
            unroll<kTogether>([&](auto p) MINFER_LAMBDA {
                dots[r][p].template add<plane>(operands[plane * kParts + p], data + r * 64);
            });
        });
        forget_loads();
    });
    unroll<R>([&](auto r) MINFER_LAMBDA {
        unroll<kTogether>([&](auto p) MINFER_LAMBDA {
            float* y = out + r * stride + p * kWidth;
            vf acc = fma(load(scales + p * kWidth), to_float(dots[r][p].total()), load(y));
            if constexpr (Minimum) {
                acc = fma(load(minimums + p * kWidth), to_float(iset1(sum[r])), acc);
            }
            store(y, acc);
        });
    });
}

template <int R, int Group, bool Minimum>
void multiply(int64_t n_in, const Expanded& panel, int offset, const uint8_t* tile, float* out,
              int64_t stride) {
    const ExactTile a(tile, n_in, R);
    for (int r = 0; r < R; ++r) {
        for (int i = 0; i < kPanel; ++i) out[r * stride + i] = 0;
    }
    for (int first = 0; first < kParts; first += kTogether) {
        const Operand* operands = panel.operands + first;
        const float *scales = panel.scales + first * kWidth,
                    *minimums = panel.minimums + first * kWidth;
        const uint8_t* data = a.data;
        const int32_t* sums = a.sums;
        float* y = out + first * kWidth;
        for (int64_t i = 0; i < n_in / 32; ++i, data += R * 64, sums += R * 2) {
            constexpr int planes = Group / 4;
            add_group<R, 0, planes, Minimum>(operands, scales, minimums, data, sums, offset, y,
                                             stride);
            if constexpr (Group == 16) {
                add_group<R, 4, planes, Minimum>(operands, scales + kPanel, minimums + kPanel,
                                                 data, sums, offset, y, stride);
            }
            operands += 8 * kParts;
            scales += 32 / Group * kPanel;
            minimums += 32 / Group * kPanel;
        }
    }
    for (int r = 0; r < R; ++r) {
        for (int i = 0; i < kPanel; i += kWidth) {
            store(out + r * stride + i, load(out + r * stride + i) * set1(a.scales[r]));
        }
    }
}

template <int R>
MINFER_FN void multiply_rows(const Traits& t, int64_t n_in, const Expanded& panel,
                             const uint8_t* tile, float* out, int64_t stride) {
    const auto run = t.group == 32 ? (t.minimum ? multiply<R, 32, true> : multiply<R, 32, false>)
                                   : (t.minimum ? multiply<R, 16, true> : multiply<R, 16, false>);
    const int offset = t.offset - ExactDot::kCodeShift;
    run(n_in, panel, offset, tile, out, stride);
}

}  // namespace

int64_t expanded_exact_bytes(int64_t n_in) {
    return n_in / 4 * kParts * int64_t(sizeof(Operand)) +
           2 * (n_in / 16) * kPanel * int64_t(sizeof(float));
}

void expand_exact(Format format, int64_t n_in, const uint8_t* panel, uint8_t* expanded) {
    with_quantized(format,
                   [&]<Format F>() { expand<F>(n_in, panel, Expanded(expanded, n_in)); });
}

void multiply_expanded(Format format, int64_t n_in, const uint8_t* expanded, const uint8_t* tile,
                       int rows, float* out, int64_t stride) {
    const Expanded panel(const_cast<uint8_t*>(expanded), n_in);
    const Traits t = traits(format);
    static_assert(kTileRows == 4);
    switch (rows) {
        case 1: return multiply_rows<1>(t, n_in, panel, tile, out, stride);
        case 2: return multiply_rows<2>(t, n_in, panel, tile, out, stride);
        case 3: return multiply_rows<3>(t, n_in, panel, tile, out, stride);
        default: return multiply_rows<4>(t, n_in, panel, tile, out, stride);
    }
}

}  // namespace minfer::MINFER_ISA
#endif
