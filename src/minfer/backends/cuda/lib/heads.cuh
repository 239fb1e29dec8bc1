// One head of one row in the hands of one warp: bias, norm, rotation, store to the KV cache. The
// fused epilogue and the separate ops are built from these same functions, every operation rounded
// on its own, so they agree bit for bit.
#include "lib/base.cuh"

// D features of a head, feature 32 i + lane in x[i].
template <int D>
struct Head {
    static constexpr int N = (D + WARP - 1) / WARP;
    float x[N];

    DEVICE static int feature(int i) { return i * WARP + threadIdx.x % WARP; }

    DEVICE void load(const float* p) {
#pragma unroll
        for (int i = 0; i < N; i++) x[i] = feature(i) < D ? p[feature(i)] : 0.0f;
    }

    DEVICE void write(float* p) const {
#pragma unroll
        for (int i = 0; i < N; i++)
            if (feature(i) < D) p[feature(i)] = x[i];
    }

    DEVICE void add(const float* bias) {
#pragma unroll
        for (int i = 0; i < N; i++)
            if (feature(i) < D) x[i] = __fadd_rn(x[i], bias[feature(i)]);
    }

    DEVICE void norm(const float* weight, float eps) {
        float squares = 0.0f;
#pragma unroll
        for (int i = 0; i < N; i++) squares = __fmaf_rn(x[i], x[i], squares);
        float scale = rsqrtf(warp_sum(squares) / D + eps);
#pragma unroll
        for (int i = 0; i < N; i++)
            if (feature(i) < D) x[i] = __fmul_rn(__fmul_rn(x[i], scale), weight[feature(i)]);
    }
};

// Cosine and sine of position * frequency, for a frequency in turns a position given as the sum of
// two floats: the angle is exact to about 1e-7 turns at any position, where a product in f32
// radians would be off by 6e-3 at position 100,000. Not inlined: it is long, and wanted often.
__device__ __noinline__ float2 turned(int position, float2 turns, float magnitude) {
    float p = (float)position;
    float whole = __fmul_rn(p, turns.x);
    float rest = __fmaf_rn(p, turns.x, -whole);
    float angle = (whole - rintf(whole)) + __fmaf_rn(p, turns.y, rest);
    float s, c;
    sincospif(2.0f * angle, &s, &c);
    return make_float2(__fmul_rn(c, magnitude), __fmul_rn(s, magnitude));
}

// The rotation of the first R features of a head by a position, in the hands of a warp: cosine and
// sine of pair 32 i + lane in at[i]. Pair j is (j, j + R/2) in NeoX style, else (2j, 2j + 1).
template <int R>
struct Rotation {
    static constexpr int N = (R / 2 + WARP - 1) / WARP;
    int position = -1;
    float2 turns[N], at[N];

    DEVICE static int pair(int i) { return i * WARP + threadIdx.x % WARP; }

    // Load the frequencies, before `find`.
    DEVICE void load(const float2* from) {
#pragma unroll
        for (int i = 0; i < N; i++)
            if (pair(i) < R / 2) turns[i] = from[pair(i)];
    }

    DEVICE void find(int wanted, float magnitude) {
        if (wanted == position) return;
        position = wanted;
#pragma unroll
        for (int i = 0; i < N; i++)
            if (pair(i) < R / 2) at[i] = turned(position, turns[i], magnitude);
    }

    // Rotate a head in shared memory. Called by a whole warp; the caller orders it against what
    // comes before, and it ends with the writes visible to the warp.
    template <bool NX>
    DEVICE void rotate(float* head) const {
#pragma unroll
        for (int i = 0; i < N; i++) {
            int j = pair(i);
            if (j < R / 2) {
                int a = NX ? j : 2 * j, b = NX ? j + R / 2 : 2 * j + 1;
                float x = head[a], y = head[b];
                head[a] = __fmaf_rn(x, at[i].x, -__fmul_rn(y, at[i].y));
                head[b] = __fmaf_rn(x, at[i].y, __fmul_rn(y, at[i].x));
            }
        }
        __syncwarp();
    }
};
