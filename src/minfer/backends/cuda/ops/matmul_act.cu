// Activations as matrix products read them: halves in the chunked layout of `lib/act.cuh`.
//
// What: matmul_act writes x * 2^-ACT_SHIFT, matmul_act_normed the same of x / rms(x) * norm.
// Layouts: x f32 [n_rows][K]; norm f32 [K]; out chunked halves of padded_rows rows, zeros in those
//   that are not there and past K.
// Who: matmul_act: a thread 8 values. matmul_act_normed: a block a row, which stays in registers
//   between the sum of its squares and its end; the norm's weights come before the wait for the
//   kernel before.
// Floor: 6 bytes a value; of few rows, the latency of memory once.
// Limits: K a multiple of 8; where it is normed, at most 8 * THREADS * PER, and up to 28,672
//   without spilled registers.
// Numerics: f32, each value rounded once to half.
// Versions: 1 (2026-11): normed rows read twice, by 256 threads: 2.9 us for 16 rows of 3584. 2:
//   read once, by 512; not measured yet.
// Macros: THREADS of a block that norms, PER vectors of 8 values that each holds.
#include "lib/act.cuh"

#ifndef PER
#define PER 1
#define THREADS 512
#endif

// Eight values of row `row`, scaled, to their place.
DEVICE void put_act(u8* out, int row, int padded_rows, int vector, float4 a, float4 b) {
    uint4 h = {pack_act(a.x, a.y), pack_act(a.z, a.w), pack_act(b.x, b.y), pack_act(b.z, b.w)};
    *(uint4*)(out + vector_offset(row, padded_rows, vector)) = h;
}

KERNEL __launch_bounds__(256)
matmul_act(const float* x, u8* out, int n_rows, int padded_rows, int k, int n_strips) {
    pdl_launch();
    pdl_wait();
    int row = blockIdx.x, i = blockIdx.y * 256 + threadIdx.x;
    if (i >= n_strips * 16) return;
    float4 a = {}, b = {};
    if (i * 8 < k && row < n_rows) {
        const float4* from = (const float4*)(x + (u64)row * k) + 2 * i;
        a = from[0], b = from[1];
    }
    put_act(out, row, padded_rows, i, a, b);
}

KERNEL __launch_bounds__(THREADS)
matmul_act_normed(const float* x, const float* norm, u8* out, int n_rows, int padded_rows, int k,
                  int n_strips, float eps) {
    __shared__ float scratch[THREADS / WARP];
    int row = blockIdx.x, t = threadIdx.x;
    pdl_launch();
    float4 w[PER][2] = {}, v[PER][2] = {};
#pragma unroll
    for (int i = 0; i < PER; i++) {
        const float4* from = (const float4*)norm + 2 * (i * THREADS + t);
        if ((i * THREADS + t) * 8 < k) w[i][0] = from[0], w[i][1] = from[1];
    }
    pdl_wait();
    float squares = 0.0f;
#pragma unroll
    for (int i = 0; i < PER; i++) {
        const float4* from = (const float4*)(x + (u64)row * k) + 2 * (i * THREADS + t);
        if ((i * THREADS + t) * 8 < k && row < n_rows) v[i][0] = from[0], v[i][1] = from[1];
#pragma unroll
        for (int j = 0; j < 2; j++) {
            float4 u = v[i][j];
            squares += u.x * u.x + u.y * u.y + u.z * u.z + u.w * u.w;
        }
    }
    float scale = rsqrtf(block_sum<THREADS>(squares, scratch) / k + eps);
    if (row >= n_rows) scale = 0.0f;
#pragma unroll
    for (int i = 0; i < PER; i++) {
        int vector = i * THREADS + t;
        if (vector >= n_strips * 16) break;
#pragma unroll
        for (int j = 0; j < 2; j++) {
            v[i][j].x *= scale * w[i][j].x, v[i][j].y *= scale * w[i][j].y;
            v[i][j].z *= scale * w[i][j].z, v[i][j].w *= scale * w[i][j].w;
        }
        put_act(out, row, padded_rows, vector, v[i][0], v[i][1]);
    }
}
