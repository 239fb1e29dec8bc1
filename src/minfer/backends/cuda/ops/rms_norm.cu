// Root-mean-square norm: y = x / sqrt(mean(x^2) + eps) * weight over groups of WIDTH features.
//
// Shapes:  x, y f32 [groups][WIDTH]; weight f32 [WIDTH]. y may be x.
// Who:     rms_norm: a block of THREADS threads a group, the group held in registers between the
//          two uses. head_norm: a warp a group, for groups of at most 256 (query and key heads).
// Floor:   8 bytes a value.
// Numerics: f32; the order of the sum depends on WIDTH alone, so a row never depends on others.
//          head_norm is bit for bit what `qkv.cu` computes in its epilogue.
// Macros:  WIDTH, THREADS.
#include "lib/heads.cuh"

constexpr int PER_THREAD = (WIDTH + THREADS - 1) / THREADS;
constexpr bool AHEAD = PER_THREAD <= 8;  // weights are fetched before the kernel before ends

KERNEL __launch_bounds__(THREADS)
    rms_norm(const float* x, const float* weight, float* y, float eps) {
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
    const float* row = x + (i64)blockIdx.x * WIDTH;
    float v[PER_THREAD], squares = 0.0f;
#pragma unroll
    for (int i = 0; i < PER_THREAD; i++) {
        int e = i * THREADS + t;
        v[i] = e < WIDTH ? row[e] : 0.0f;
        squares = __fmaf_rn(v[i], v[i], squares);
    }
    float scale = rsqrtf(block_sum<THREADS>(squares, scratch) / WIDTH + eps);
#pragma unroll
    for (int i = 0; i < PER_THREAD; i++) {
        int e = i * THREADS + t;
        if (e < WIDTH)
            y[(i64)blockIdx.x * WIDTH + e] =
                __fmul_rn(__fmul_rn(v[i], scale), AHEAD ? w[i] : weight[e]);
    }
}

#if WIDTH <= 256
KERNEL head_norm(const float* x, const float* weight, float* y, float eps, int groups) {
    pdl_launch();
    pdl_wait();
    int group = blockIdx.x * (THREADS / WARP) + threadIdx.x / WARP;
    if (group >= groups) return;
    Head<WIDTH> head;
    head.load(x + (i64)group * WIDTH);
    head.norm(weight, eps);
    head.write(y + (i64)group * WIDTH);
}
#endif
