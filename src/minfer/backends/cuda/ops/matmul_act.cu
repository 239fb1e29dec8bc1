// Activations as matrix products read them: halves in the chunked layout of `lib/act.cuh`.
//
// What: matmul_act writes x * 2^-ACT_SHIFT, matmul_act_normed the same of x / rms(x) * norm.
// Layouts: x f32 [n_rows][K]; norm f32 [K]; out chunked halves of padded_rows rows, zeros in those
//   that are not there and past K.
// Who: matmul_act: a thread 8 values, one vector of the output. matmul_act_normed: a block a row,
//   which stays in registers between the sum of its squares and its end; so do the norm's weights,
//   from before the wait for the kernel before, where they fit beside it.
// Floor: 6 bytes a value; of few rows, the latency of memory once.
// Limits: K a multiple of 8; where it is normed, at most 8 * THREADS * PER, and up to 28,672
//   without spilled registers.
// Numerics: f32, each value rounded once to half.
// Versions: 1 (2026-11): normed rows read twice, by 256 threads: 2.9 us for 16 rows of 3584. 2:
//   read once, by 512: 2.7 us, of which most is the launch.
// Macros: THREADS of a block that norms, PER vectors of 8 values that each holds; ORDERED, for
//   `wgmma_weights.cuh`, whose vectors gather what lies 32 values apart.
#include "lib/act.cuh"

#ifndef PER
#define PER 1
#define THREADS 512
#define ORDERED 0
#endif

// The eight values of a vector of the output.
struct Eight {
    float2 pair[4];

    // Of vector number `vector` of a row of k values; zeros past its end.
    DEVICE void load(const float* row, int vector, int k) {
        if (ORDERED) {
            int first = vector / 16 * 128 + vector % 16 * 2;
#pragma unroll
            for (int i = 0; i < 4; i++) {
                bool there = first + 32 * i < k;
                pair[i] = there ? *(const float2*)(row + first + 32 * i) : float2{};
            }
        } else {
            const float4* from = (const float4*)row + 2 * vector;
            float4 a = {}, b = {};
            if (vector * 8 < k) a = from[0], b = from[1];
            pair[0] = {a.x, a.y}, pair[1] = {a.z, a.w};
            pair[2] = {b.x, b.y}, pair[3] = {b.z, b.w};
        }
    }

    // Scaled, to their place in row `row`.
    DEVICE void store(u8* out, int row, int padded_rows, int vector) const {
        uint4 h = {pack_act(pair[0].x, pair[0].y), pack_act(pair[1].x, pair[1].y),
                   pack_act(pair[2].x, pair[2].y), pack_act(pair[3].x, pair[3].y)};
        int strip = vector / 16;
        u64 at = ORDERED ? ordered_offset(row, padded_rows, strip, vector % 16)
                         : chunked_offset(row, padded_rows, strip, vector & 3, vector >> 2 & 3);
        *(uint4*)(out + at) = h;
    }
};

KERNEL __launch_bounds__(256)
matmul_act(const float* x, u8* out, int n_rows, int padded_rows, int k, int n_strips) {
    pdl_launch();
    pdl_wait();
    int row = blockIdx.x, i = blockIdx.y * 256 + threadIdx.x;
    if (i >= n_strips * 16) return;
    Eight v = {};
    if (row < n_rows) v.load(x + (u64)row * k, i, k);
    v.store(out, row, padded_rows, i);
}

constexpr bool AHEAD = PER <= 4;  // the norm's weights fit beside the row

KERNEL __launch_bounds__(THREADS)
matmul_act_normed(const float* x, const float* norm, u8* out, int n_rows, int padded_rows, int k,
                  int n_strips, float eps) {
    __shared__ float scratch[THREADS / WARP];
    int row = blockIdx.x, t = threadIdx.x;
    pdl_launch();
    Eight w[AHEAD ? PER : 1], v[PER] = {};
#pragma unroll
    for (int i = 0; AHEAD && i < PER; i++) w[i].load(norm, i * THREADS + t, k);
    pdl_wait();
    float squares = 0.0f;
#pragma unroll
    for (int i = 0; i < PER; i++) {
        if (row < n_rows) v[i].load(x + (u64)row * k, i * THREADS + t, k);
#pragma unroll
        for (int j = 0; j < 4; j++) {
            float2 u = v[i].pair[j];
            squares += u.x * u.x + u.y * u.y;
        }
    }
    float scale = rsqrtf(block_sum<THREADS>(squares, scratch) / k + eps);
    if (row >= n_rows) scale = 0.0f;
#pragma unroll
    for (int i = 0; i < PER; i++) {
        int vector = i * THREADS + t;
        if (vector >= n_strips * 16) break;
        Eight& mine = w[AHEAD ? i : 0];
        if (!AHEAD) mine.load(norm, vector, k);
#pragma unroll
        for (int j = 0; j < 4; j++) {
            v[i].pair[j].x *= scale * mine.pair[j].x;
            v[i].pair[j].y *= scale * mine.pair[j].y;
        }
        v[i].store(out, row, padded_rows, vector);
    }
}
