// Root-mean-square norm: y = x / sqrt(mean(x^2) + eps) * weight (+ residual), groups of WIDTH.
//
// Shapes:  x, residual (or null), y f32 [groups][WIDTH]; weight f32 [WIDTH]. y may be x.
// Who:     rms_norm: a block of THREADS threads a group, the group held in registers between the
//          two uses. head_norm: a warp a group, for groups of at most 256 (query and key heads).
// Floor:   8 bytes a value, 12 with a residual.
// Numerics: f32, bit for bit the norm, then the residual; the order of the squares' sum depends on
//          WIDTH alone, so a row never depends on others. head_norm is bit for bit what `qkv.cu`
//          computes in its epilogue.
// Macros:  WIDTH, THREADS.
#include "lib/heads.cuh"

constexpr int PER_THREAD = (WIDTH + THREADS - 1) / THREADS;
constexpr bool AHEAD = PER_THREAD <= 8;  // weights are fetched before the kernel before ends

KERNEL __launch_bounds__(THREADS)
    rms_norm(const float* x, const float* weight, const float* residual, float* y, float eps) {
    __shared__ float scratch[THREADS / WARP];
    pdl_launch();
    int t = threadIdx.x;
    float w[AHEAD ? PER_THREAD : 1];
#pragma unroll
    for (int i = 0; AHEAD && i < PER_THREAD; i++) {
        int e = i * THREADS + t;
        w[i] = e < WIDTH ? weight[e] : 0.0f;
    }
    pdl_wait();
    i64 first = (i64)blockIdx.x * WIDTH;
    const float* row = x + first;
    float v[PER_THREAD], added[AHEAD ? PER_THREAD : 1], squares = 0.0f;
#pragma unroll
    for (int i = 0; i < PER_THREAD; i++) {
        int e = i * THREADS + t;
        v[i] = e < WIDTH ? row[e] : 0.0f;
        squares = __fmaf_rn(v[i], v[i], squares);
        if (AHEAD) added[i] = residual && e < WIDTH ? residual[first + e] : 0.0f;
    }
    float scale = rsqrtf(block_sum<THREADS>(squares, scratch) / WIDTH + eps);
#pragma unroll
    for (int i = 0; i < PER_THREAD; i++) {
        int e = i * THREADS + t;
        if (e >= WIDTH) continue;
        float normed = __fmul_rn(__fmul_rn(v[i], scale), AHEAD ? w[i] : weight[e]);
        if (residual) normed = __fadd_rn(normed, AHEAD ? added[i] : residual[first + e]);
        y[first + e] = normed;
    }
}

#if WIDTH <= 256
KERNEL head_norm(const float* x, const float* weight, const float* residual, float* y, float eps,
                 int groups) {
    pdl_launch();
    pdl_wait();
    int group = blockIdx.x * (THREADS / WARP) + threadIdx.x / WARP;
    if (group >= groups) return;
    Head<WIDTH> head;
    head.load(x + (i64)group * WIDTH);
    head.norm(weight, eps);
    if (residual) head.add(residual + (i64)group * WIDTH);
    head.write(y + (i64)group * WIDTH);
}
#endif
