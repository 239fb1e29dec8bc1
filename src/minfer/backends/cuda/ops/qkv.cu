// What follows the Q, K and V projections, in one launch instead of seven: bias, per-head norm of q
// and k, rotation, store of k and v to the KV cache.
//
// Shapes:  q, k, v f32, row r at q + r * q_stride (and so on), so one kernel serves projections
//          side by side and apart; biases f32 [heads * HD]; norm weights f32 [HD]; out f32
//          [rows][n_heads][HD]; cells, positions i32 [rows]; planes as kv.py.
// Who:     grid (rows, (n_heads + n_kv_heads) / 4); a warp a query head, or a key head and the
//          value head of the same number.
// Floor:   8 bytes a value of q, 4 + the cache's bytes a value of k and v.
// Numerics: bit for bit the chain add, rms_norm, rope, kv_store. Padded rows are skipped.
// Macros:  HD, ROTATED, NEOX, KV, BIAS (0/1), NORM (0/1).
#include "lib/heads.cuh"
#include "lib/kv.cuh"

constexpr int WARPS = 4;

KERNEL qkv(const float* q, const float* k, const float* v, const float* q_bias, const float* k_bias,
           const float* v_bias, const float* q_norm, const float* k_norm, const i32* positions,
           const i32* cells, const float2* turns, float* out, u8* k_plane, u8* v_plane,
           f16* k_scales, f16* v_scales, int n_heads, int n_kv_heads, int q_stride, int k_stride,
           int v_stride, float magnitude, float eps) {
    __shared__ __align__(16) float heads[WARPS][HD];
    pdl_launch();
    pdl_wait();
    int row = blockIdx.x, warp = threadIdx.x / WARP;
    int h = blockIdx.y * WARPS + warp, position = positions[row];
    if (h >= n_heads + n_kv_heads || position < 0) return;
    float* mine = heads[warp];
    Head<HD> head;
    if (h < n_heads) {
        head.load(q + (i64)row * q_stride + h * HD);
        if (BIAS) head.add(q_bias + h * HD);
        if (NORM) head.norm(q_norm, eps);
        head.write(mine);
        __syncwarp();
        rotate<ROTATED, NEOX>(mine, position, turns, magnitude);
        head.load(mine);
        head.write(out + ((i64)row * n_heads + h) * HD);
        return;
    }
    h -= n_heads;
    int cell = cells[row];
    if (cell < 0) return;
    i64 to = kv_block(cell / PAGE, h, n_kv_heads);
    Head<HD> value;
    value.load(v + (i64)row * v_stride + h * HD);
    head.load(k + (i64)row * k_stride + h * HD);
    if (BIAS) head.add(k_bias + h * HD);
    if (NORM) head.norm(k_norm, eps);
    head.write(mine);
    __syncwarp();
    rotate<ROTATED, NEOX>(mine, position, turns, magnitude);
    store_head<HD, KV>(mine, k_plane, k_scales, to, cell % PAGE);
    __syncwarp();
    if (BIAS) value.add(v_bias + h * HD);
    value.write(mine);
    __syncwarp();
    store_head<HD, KV>(mine, v_plane, v_scales, to, cell % PAGE);
}
