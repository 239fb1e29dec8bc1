// Embedding: y[row] = scale * table[ids[row]], for every weight type.
//
// Shapes:  ids i32 [rows]; table raw GGUF rows [vocabulary][width]; y f32 [rows][width].
// Who:     grid (rows, width / 256), a thread a value. An id outside of the vocabulary (a padded
//          row) gives a row of zeros.
// Floor:   rows * width * (4 + bytes a weight): microseconds at any size, so the simple form stays.
// Numerics: equal to the NumPy dequantizer bit for bit, times `scale` rounded once.
// Macros:  TYPE, a type of `lib/quant.cuh`.
#include "lib/quant_gguf.cuh"

// Value i of the block at b, every operation rounded on its own.
template <class F>
DEVICE float value(const u8* b, int i) {
    if constexpr (F::SCALES == Scales::NONE) {
        return Gguf<F>::value(b);
    } else {
        int q = Gguf<F>::code(b, i), group = i / F::GROUP;
        if constexpr (F::TABLE) q = level<F>(q);
        float product = __fmul_rn(Gguf<F>::scale(b, group), (float)(q - F::ZERO));
        return __fadd_rn(product, Gguf<F>::minimum(b, group));
    }
}

KERNEL embed(const i32* ids, const u8* table, float* y, int vocabulary, int width, float scale) {
    pdl_launch();
    pdl_wait();
    int row = blockIdx.x, column = blockIdx.y * 256 + threadIdx.x;
    if (column >= width) return;
    int id = ids[row];
    float x = 0.0f;
    if (id >= 0 && id < vocabulary) {
        constexpr int items = Gguf<TYPE>::ITEMS, bytes = Gguf<TYPE>::BYTES;
        const u8* line = table + (i64)id * (width / items) * bytes;
        x = __fmul_rn(value<TYPE>(line + (i64)(column / items) * bytes, column % items), scale);
    }
    y[(i64)row * width + column] = x;
}
