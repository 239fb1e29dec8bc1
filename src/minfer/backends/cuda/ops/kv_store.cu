// Store of the rows of K and V to their cells of the KV cache.
//
// Shapes:  k, v f32 [rows][n_kv_heads][HD]; cells i32 [rows], -1 stores nowhere; planes as kv.py.
// Who:     grid (rows, n_kv_heads / 4), a warp a head, K then V.
// Floor:   8 bytes read and 2 * bytes of the cache's type written a pair of values.
// Numerics: f16 rounds to nearest even; q8_0 as d = max / 127, quants rounded to nearest even by
//          1 / d in f32, d kept as f16.
// Macros:  HD, KV.
#include "lib/heads.cuh"
#include "lib/kv.cuh"

constexpr int WARPS = 4;

KERNEL kv_store(const float* k, const float* v, const i32* cells, u8* k_plane, u8* v_plane,
                f16* k_scales, f16* v_scales, int n_kv_heads) {
    __shared__ __align__(16) float heads[WARPS][HD];
    pdl_launch();
    pdl_wait();
    int row = blockIdx.x, warp = threadIdx.x / WARP;
    int h = blockIdx.y * WARPS + warp, cell = cells[row];
    if (h >= n_kv_heads || cell < 0) return;
    i64 from = ((i64)row * n_kv_heads + h) * HD;
    i64 to = kv_block(cell / PAGE, h, n_kv_heads);
    Head<HD> head;
    head.load(k + from);
    head.write(heads[warp]);
    __syncwarp();
    store_head<HD, KV>(heads[warp], k_plane, k_scales, to, cell % PAGE);
    __syncwarp();
    head.load(v + from);
    head.write(heads[warp]);
    __syncwarp();
    store_head<HD, KV>(heads[warp], v_plane, v_scales, to, cell % PAGE);
}
