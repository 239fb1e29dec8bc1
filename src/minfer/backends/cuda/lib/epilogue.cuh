// What becomes of a finished sum: a row's factor, then bias and residual, or the gated product.
//
// Columns are packed rows of the weight (`quant.cuh`); in a GATED weight, 8 of gate and 8 of up
// alternate, so the up of gate column n is n + 8, and their product is output n / 16 * 8 + n % 8.
#include "lib/act.cuh"

constexpr int PLAIN_OUT = 0, GATED_SILU = 1, GATED_GELU = 2;

DEVICE float gated(int kind, float gate, float up) {
    return (kind == GATED_SILU ? silu(gate) : gelu(gate)) * up;
}

struct Output {
    const float* factor;    // [packed rows]
    const float* bias;      // [stride], or null
    const float* residual;  // [m][stride], or null
    float* out;             // [m][stride]
    int stride;

    // Sums of columns n, n + 1 (n even) of row m.
    DEVICE void plain(int m, int n, float a, float b) const {
        if (n >= stride) return;
        float2 f = *(const float2*)(factor + n);
        if (stride & 1) {  // pairs are not aligned
            one(m, n, a * f.x);
            one(m, n + 1, b * f.y);
            return;
        }
        float2 y = {a * f.x, b * f.y};
        if (bias) {
            float2 e = *(const float2*)(bias + n);
            y.x += e.x, y.y += e.y;
        }
        if (residual) {
            float2 e = *(const float2*)(residual + (u64)m * stride + n);
            y.x += e.x, y.y += e.y;
        }
        *(float2*)(out + (u64)m * stride + n) = y;
    }

    // Sums of column n, n % 16 < 8, and of column n + 8: two outputs, or a gate and its up.
    DEVICE void finish(int kind, int m, int n, float a, float b) const {
        a *= factor[n];
        b *= factor[n + 8];
        if (kind == PLAIN_OUT) {
            one(m, n, a);
            one(m, n + 8, b);
        } else {
            int to = n / 16 * 8 + n % 8;
            if (to < stride) out[(u64)m * stride + to] = gated(kind, a, b);
        }
    }

    // Column n of row m, its factor applied.
    DEVICE void one(int m, int n, float y) const {
        if (n >= stride) return;
        if (bias) y += bias[n];
        if (residual) y += residual[(u64)m * stride + n];
        out[(u64)m * stride + n] = y;
    }

    // Sums of gate columns n, n + 1 (n even, n % 16 < 8) and of their ups.
    template <int KIND>
    DEVICE void pair(int m, int n, float g0, float g1, float u0, float u1) const {
        int to = n / 16 * 8 + n % 8;
        if (to >= stride) return;
        float2 fg = *(const float2*)(factor + n), fu = *(const float2*)(factor + n + 8);
        float2 y = {gated(KIND, g0 * fg.x, u0 * fu.x), gated(KIND, g1 * fg.y, u1 * fu.y)};
        *(float2*)(out + (u64)m * stride + to) = y;
    }
};
