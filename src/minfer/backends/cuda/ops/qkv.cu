// What follows the Q, K and V projections, in one launch instead of seven: bias, per-head norm of q
// and k, rotation, store of k and v to the KV cache. Rows that `attention_decode` takes alone do
// this there.
//
// Shapes:  projections f32 [rows][n_heads + 2 * n_kv_heads][HD]: q, k, v; biases f32 [heads * HD];
//          norm weights f32 [HD]; out f32 [rows][n_heads][HD]; cells, positions i32 [rows]; planes
//          as kv.py.
// Who:     grid (rows, (n_heads + n_kv_heads) / 4); a warp a query head, or a key head and the
//          value head of the same number.
// Floor:   8 bytes a value of q, 4 + the cache's bytes a value of k and v.
// Numerics: bit for bit the chain add, rms_norm, rope, kv_store. Padded rows are skipped.
// Macros:  HD, ROTATED, NEOX, KV, BIAS (0/1), NORM (0/1).
#include "lib/projections.cuh"

constexpr int WARPS = 4;

KERNEL qkv(const float* values, const float* q_bias, const float* k_bias, const float* v_bias,
           const float* q_norm, const float* k_norm, const i32* cells, const float2* turns,
           const i32* positions, float* out, u8* k_plane, u8* v_plane, f16* k_scales,
           f16* v_scales, int n_heads, int n_kv_heads, float magnitude, float eps) {
    __shared__ __align__(16) float heads[WARPS][HD];
    pdl_launch();
    pdl_wait();
    int row = blockIdx.x, warp = threadIdx.x / WARP;
    int h = blockIdx.y * WARPS + warp, position = positions[row], cell = cells[row];
    if (h >= n_heads + n_kv_heads || position < 0) return;
    Projections projections = {values, q_bias,  k_bias,     v_bias, q_norm,
                               k_norm, n_heads, n_kv_heads, eps};
    float* mine = heads[warp];
    Rotation<ROTATED> rotation;
    rotation.load(turns);
    rotation.find(position, magnitude);
    if (h >= n_heads) {
        if (cell >= 0)
            projections.store(mine, mine, row, cell, h - n_heads, rotation,
                              {k_plane, v_plane, k_scales, v_scales});
        return;
    }
    projections.query(mine, row, h, rotation);
    Head<HD> head;
    head.load(mine);
    head.write(out + ((i64)row * n_heads + h) * HD);
}
