// Embedding: y[row] = scale * table[ids[row]], for every weight type.
//
// Shapes:  ids i32 [rows]; table raw GGUF rows [vocabulary][width]; y f32 [rows][width].
// Who:     grid (rows, width / 256), a thread a value. An id outside of the vocabulary (a padded
//          row) gives a row of zeros.
// Floor:   rows * width * (4 + bytes a weight): microseconds at any size, so the simple form stays.
// Numerics: equal to the NumPy dequantizer bit for bit, times `scale` rounded once.
// Macros:  TYPE, the GGUF id of the table's type.
#include "lib/blocks.cuh"

KERNEL embed(const i32* ids, const u8* table, float* y, int vocabulary, int width, float scale) {
    pdl_launch();
    pdl_wait();
    int row = blockIdx.x, column = blockIdx.y * 256 + threadIdx.x;
    if (column >= width) return;
    int id = ids[row];
    float x = 0.0f;
    if (id >= 0 && id < vocabulary) {
        constexpr int items = Block<TYPE>::items, bytes = Block<TYPE>::bytes;
        const u8* line = table + (i64)id * (width / items) * bytes;
        x = __fmul_rn(value<TYPE>(line + (i64)(column / items) * bytes, column % items), scale);
    }
    y[(i64)row * width + column] = x;
}
