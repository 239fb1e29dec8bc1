// What follows the Q, K and V projections, a head in the hands of a warp: bias, norm, rotation, and
// the store of k and v to the KV cache. `qkv` does this for all rows, `attention_decode` for the
// heads that it reads. Macros of the kernel: HD, ROTATED, NEOX, KV, BIAS, NORM.
#include "lib/heads.cuh"
#include "lib/kv.cuh"

// The projections of all rows side by side, and what is to be done to them.
struct Projections {
    const float* values;  // [rows][n_heads + 2 * n_kv_heads][HD]
    const float *q_bias, *k_bias, *v_bias;  // [heads * HD]
    const float *q_norm, *k_norm;  // [HD]
    int n_heads, n_kv_heads;
    float eps;

    // Head h of a row: the query heads, the key heads, the value heads.
    DEVICE const float* head(int row, int h) const {
        return values + ((i64)row * (n_heads + 2 * n_kv_heads) + h) * HD;
    }

    // Query head h of a row, finished, to `mine` in shared memory.
    DEVICE void query(float* mine, int row, int h, const Rotation<ROTATED>& rotation) const {
        Head<HD> q;
        q.load(head(row, h));
        if (BIAS) q.add(q_bias + h * HD);
        if (NORM) q.norm(q_norm, eps);
        q.write(mine);
        __syncwarp();
        rotation.rotate<NEOX>(mine);
    }

    // Store a row's key and value of a KV head in a cell, by way of two heads in shared memory,
    // which hold them packed after that; they may be the same one.
    DEVICE void store(float* key, float* value, int row, int cell, int kv_head,
                      const Rotation<ROTATED>& rotation, const Planes& planes) const {
        i64 block = kv_block(cell / PAGE, kv_head, n_kv_heads);
        Head<HD> k, v;  // all on their way before any is used
        k.load(head(row, n_heads + kv_head));
        v.load(head(row, n_heads + n_kv_heads + kv_head));
        if (BIAS) v.add(v_bias + kv_head * HD);
        if (BIAS) k.add(k_bias + kv_head * HD);
        if (NORM) k.norm(k_norm, eps);
        k.write(key);
        __syncwarp();
        rotation.rotate<NEOX>(key);
        store_head<HD, KV>(key, planes.k, planes.k_scales, block, cell % PAGE);
        __syncwarp();
        v.write(value);
        __syncwarp();
        store_head<HD, KV>(value, planes.v, planes.v_scales, block, cell % PAGE);
        __syncwarp();
    }
};
