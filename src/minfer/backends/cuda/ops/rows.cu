// Selected rows: y[i] = x[index[i]]; an index outside of x (a padded row) gives zeros.
//
// Shapes:  x f32 [n_rows][width]; index i32 [wanted]; y f32 [wanted][width].
// Who:     grid (wanted, width / 256), a thread a value.
// Floor:   8 bytes a value.
#include "lib/base.cuh"

KERNEL rows(const float* x, const i32* index, float* y, int n_rows, int width) {
    pdl_launch();
    pdl_wait();
    int row = blockIdx.x, column = blockIdx.y * 256 + threadIdx.x;
    if (column >= width) return;
    int from = index[row];
    bool inside = from >= 0 && from < n_rows;
    y[(i64)row * width + column] = inside ? x[(i64)from * width + column] : 0.0f;
}
