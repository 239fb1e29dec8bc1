// Weights that are plain numbers (F32, F16, BF16) times f32 activations, in f32.
//
//   y[r][c] = sum_k w[k][c] x[r][k], even and odd k apart where registers allow, then added
//
// 16-bit weights become f32 on the way; nothing is rounded but sums and products.

#include "matmul_codes.h"
#include "matmul_tiles.h"
#include "simd.h"

namespace minfer::MINFER_ISA {

namespace {

template <Format F>
MINFER_FN vf load_weights(const uint8_t* panel, int64_t i) {
    if constexpr (F == Format::F32) return load(reinterpret_cast<const float*>(panel) + i);
    const uint16_t* halves = reinterpret_cast<const uint16_t*>(panel) + i;
    if constexpr (F == Format::F16) return load_f16(halves);
    return load_bf16(halves);
}

template <Format F, int R>
void multiply(const uint8_t* panel, int64_t ahead, int64_t n_in, const uint8_t* tile, float* out,
              int64_t stride) {
    // Two independent sums hide the latency of one row; sets with more parts have enough already.
    constexpr int chains = kParts == 1 ? 2 : 1;
    const float* x = reinterpret_cast<const float*>(tile);
    vf acc[chains][R][kParts];
    unroll<chains * R * kParts>([&](auto i) MINFER_LAMBDA {
        acc[i / kParts / R][i / kParts % R][i % kParts] = set1(0.0f);
    });
    const auto step = [&](int64_t k, auto chain) MINFER_LAMBDA {
        unroll<kParts>([&](auto part) MINFER_LAMBDA {
            const vf w = load_weights<F>(panel, k * kPanel + part * kWidth);
            unroll<R>([&](auto r) MINFER_LAMBDA {
                acc[chain][r][part] = fma(w, set1(x[k * R + r]), acc[chain][r][part]);
            });
        });
    };
    int64_t k = 0;
    constexpr int step_bytes = chains * kPanel * traits(F).bytes;
    for (; k + chains <= n_in; k += chains) {
        prefetch(panel + k * kPanel * traits(F).bytes + ahead, step_bytes);
        unroll<chains>([&](auto chain) MINFER_LAMBDA { step(k + chain, chain); });
    }
    if (k < n_in) step(k, std::integral_constant<int, 0>{});
    unroll<R>([&](auto r) MINFER_LAMBDA {
        unroll<kParts>([&](auto part) MINFER_LAMBDA {
            vf y = acc[0][r][part];
            if constexpr (chains == 2) y = y + acc[chains - 1][r][part];
            store(out + r * stride + part * kWidth, y);
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

TileKernel numbers_kernel(Format format, int rows) {
    switch (format) {
        case Format::F32: return kernel_of<Kernel<Format::F32>::Rows>(rows);
        case Format::F16: return kernel_of<Kernel<Format::F16>::Rows>(rows);
        default: return kernel_of<Kernel<Format::BF16>::Rows>(rows);
    }
}

}  // namespace minfer::MINFER_ISA
