// Packed weights as f32: the numbers of the file's blocks, where products make halves of them.
//
// Every operation is rounded on its own, in the order of ggml. Packing multiplied a row by a power
// of two, which changes no rounding, so what comes out is the dequantizer's bit for bit, as far as
// scales stayed exact (`ops/matmul_pack.cu`).
#include "lib/quant.cuh"

// Scale and minimum of row half h, half strip H of a strip, times the row's power of two.
template <int h, int H, class F>
DEVICE void exact_factors(const Strip<F>& from, float& scale, float& minimum) {
    using P = Packed<F>;
    auto byte = [&](int i) { return (int)(from.steps[0] >> (8 * i) & 255); };
    minimum = 0.0f;
    if constexpr (F::SCALES == Scales::HALF) {
        scale = h ? high_f32(from.steps[0]) : low_f32(from.steps[0]);
    } else if constexpr (F::SCALES == Scales::HALF_MIN) {
        scale = low_f32(from.steps[h]);
        minimum = high_f32(from.steps[h]);
    } else if constexpr (F::SCALES == Scales::STEP) {
        int step = byte(F::GROUP == 16 ? 2 * h + H : 2 * from.s + h) - 128;
        scale = (h ? high_f32(from.d[0]) : low_f32(from.d[0])) * (float)step;
    } else {
        int both = byte(2 * h + H);
        int step = F::GROUP == 16 ? both & 15 : byte(2 * h);
        int min_step = F::GROUP == 16 ? both >> 4 : byte(2 * h + 1);
        scale = low_f32(from.d[h]) * (float)step;
        minimum = high_f32(from.d[h]) * (float)min_step * (1.0f / (1 << MIN_EXPONENT));
    }
    scale *= 1.0f / (1 << P::EXPONENT);
}

// Weights 8Q..8Q+7 of row half h, times the row's power of two.
template <int h, int Q, class F>
DEVICE void exact(const Strip<F>& from, float (&x)[8]) {
    using P = Packed<F>;
    u32 w[4];
    if constexpr (F::SCALES == Scales::NONE) {
        from.template row<h, Q>(w);
#pragma unroll
        for (int i = 0; i < 8; i++) x[i] = i % 2 ? high_f32(w[i / 2]) : low_f32(w[i / 2]);
    } else {
        float scale, minimum;
        exact_factors<h, Q / 2>(from, scale, minimum);
        from.template codes<h, Q>(w);
#pragma unroll
        for (int i = 0; i < 8; i++) {
            int up = P::CLASSES == 2 ? P::LOWEST + P::APART * (i / 2 % 2) : 0;
            int code = (int)(w[i / 2] >> (16 * (i % 2)) & 0xffffu) >> up;
            x[i] = __fadd_rn(__fmul_rn(scale, (float)(code - F::ZERO)), minimum);
        }
    }
}
