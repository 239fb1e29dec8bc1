// Rotary embedding of the heads of each row by the row's position.
//
// Shapes:  x, y f32 [rows][n_heads][HD]; positions i32 [rows]; turns f32 [ROTATED/2][2], the
//          frequencies in turns a position as the sum of two floats. y may be x.
// Who:     grid (rows, n_heads / 4), a warp a head.
// Floor:   8 bytes a value.
// Numerics: angle to 1e-7 turns at any position; every product rounded on its own, so the result
//          is bit for bit that of `qkv.cu`. Padded rows (position -1) are skipped.
// Macros:  HD, ROTATED (features rotated), NEOX (1: pairs (j, j + ROTATED/2); 0: (2j, 2j + 1)).
#include "lib/heads.cuh"

constexpr int WARPS = 4;

KERNEL rope(const float* x, const i32* positions, const float2* turns, float* y, int n_heads,
            float magnitude) {
    __shared__ float heads[WARPS][HD];
    pdl_launch();
    pdl_wait();
    int row = blockIdx.x, warp = threadIdx.x / WARP;
    int h = blockIdx.y * WARPS + warp, position = positions[row];
    if (h >= n_heads || position < 0) return;
    i64 at = ((i64)row * n_heads + h) * HD;
    Rotation<ROTATED> rotation;
    rotation.load(turns);
    rotation.find(position, magnitude);
    Head<HD> head;
    head.load(x + at);
    head.write(heads[warp]);
    __syncwarp();
    rotation.rotate<NEOX>(heads[warp]);
    head.load(heads[warp]);
    head.write(y + at);
}
