// What becomes of a finished sum: a row's factor, then bias and residual, or the gated product.
//
// Columns are packed rows of the weight (`quant.cuh`); in a GATED weight, 8 of gate and 8 of up
// alternate, so the up of gate column n is n + 8, and their product is output n / 16 * 8 + n % 8.
#include "lib/act.cuh"

constexpr int PLAIN_OUT = 0, GATED_SILU = 1, GATED_GELU = 2;

DEVICE float gated(int kind, float gate, float up) {
    return (kind == GATED_SILU ? silu(gate) : gelu(gate)) * up;
}

// Of columns n, n + 1, and of n + 8, n + 9.
struct Four {
    float2 a, b;
};

DEVICE Four scaled(Four y, Four factor) {
    return {{y.a.x * factor.a.x, y.a.y * factor.a.y}, {y.b.x * factor.b.x, y.b.y * factor.b.y}};
}

DEVICE float2 gated_pair(int kind, Four y) {
    return {gated(kind, y.a.x, y.b.x), gated(kind, y.a.y, y.b.y)};
}

struct Added {
    Four bias, residual;
};

// What becomes of the sums of columns n and n + 8: for each its factor, bias and residual.
struct Ends {
    float factor[2], bias[2], residual[2];
};

struct Output {
    const float* factor;    // [packed rows]
    const float* bias;      // [stride], or null
    const float* residual;  // [m][stride], or null
    float* out;             // [m][stride], or chunked halves: see `columns`, `write_halves`
    int stride;
    // Of a gated product whose only reader multiplies halves: rows of its chunks (`act.cuh`), and
    // whether they are in the other order; 0 for f32. The stride is a multiple of 128.
    int columns = 0;
    bool ordered = false;
    // Of other products, where the rows of chunks are not 0: what prepares outputs for a norm and
    // the product after it, see `norm_between.cuh`.
    const float* norm = nullptr;  // [stride]
    u8* next = nullptr;           // chunked halves, and sums of squares

    // Of column n, n % 16 < 8, and of column n + 8: two outputs, or a gate and its up. Apart from
    // `finish`, to be on the way while the sums are not known yet.
    DEVICE Ends ends(int kind, int m, int n) const {
        Ends e = {{factor[n], factor[n + 8]}};
#pragma unroll
        for (int h = 0; h < 2; h++) {
            if (kind != PLAIN_OUT || n + 8 * h >= stride) continue;
            if (bias) e.bias[h] = bias[n + 8 * h];
            if (residual) e.residual[h] = residual[(u64)m * stride + n + 8 * h];
        }
        return e;
    }

    // The sums a of column n and b of column n + 8.
    DEVICE void finish(int kind, int m, int n, float a, float b, const Ends& e) const {
        a = __fmul_rn(a, e.factor[0]);
        b = __fmul_rn(b, e.factor[1]);
        if (kind == PLAIN_OUT) {
            // in this order, as single ops would, but for the sign of zero
            float* to = out + (u64)m * stride + n;
            if (n < stride) to[0] = __fadd_rn(__fadd_rn(a, e.bias[0]), e.residual[0]);
            if (n + 8 < stride) to[8] = __fadd_rn(__fadd_rn(b, e.bias[1]), e.residual[1]);
        } else {
            int to = n / 16 * 8 + n % 8;
            if (to >= stride) return;
            float v = gated(kind, a, b);
            if (columns)
                *((u16*)pair_at(out, m, columns, to / 2, ordered) + to % 2) = pack_act(v, 0.0f);
            else
                out[(u64)m * stride + to] = v;
        }
    }

    // Column n of row m, its factor applied.
    DEVICE void one(int m, int n, float y) const {
        if (n >= stride) return;
        if (bias) y += bias[n];
        if (residual) y += residual[(u64)m * stride + n];
        out[(u64)m * stride + n] = y;
    }

    // Factors of columns n, n + 1 (n even, n % 16 < 8), n + 8, n + 9; apart from `write`, as is
    // `added`, so that those of many columns can be on their way together.
    template <int KIND>
    DEVICE Four factors(int n) const {
        if ((KIND == PLAIN_OUT ? n : n / 16 * 8 + n % 8) >= stride) return {};
        return {*(const float2*)(factor + n), *(const float2*)(factor + n + 8)};
    }

    // What is added to the outputs of these columns in row m, if pairs of them are aligned.
    DEVICE Added added(int m, int n) const { return {pairs(bias, n), residuals(m, n)}; }

    DEVICE Four residuals(int m, int n) const {
        return pairs(residual ? residual + (u64)m * stride : nullptr, n);
    }

    DEVICE Four pairs(const float* from, int n) const {
        Four v = {};
        if (stride & 1) return v;
        if (from && n < stride) v.a = *(const float2*)(from + n);
        if (from && n + 8 < stride) v.b = *(const float2*)(from + n + 8);
        return v;
    }

    // Sums y of these columns; answers plain outputs of a stride that is even.
    template <int KIND>
    DEVICE Four write(int m, int n, Four y, Four factor, Added added) const {
        y = scaled(y, factor);
        float* to = out + (u64)m * stride;
        if constexpr (KIND == PLAIN_OUT) {
            if (stride & 1) {
                one(m, n, y.a.x), one(m, n + 1, y.a.y);
                one(m, n + 8, y.b.x), one(m, n + 9, y.b.y);
                return {};
            }
            // in this order, as single ops would, but for the sign of zero
            const Four &first = added.bias, &then = added.residual;
            y = {sum(sum(y.a, first.a), then.a), sum(sum(y.b, first.b), then.b)};
            if (n < stride) *(float2*)(to + n) = y.a;
            if (n + 8 < stride) *(float2*)(to + n + 8) = y.b;
            return y;
        } else {
            int at = n / 16 * 8 + n % 8;
            if (at >= stride) return {};
            float2 v = gated_pair(KIND, y);
            if (columns)
                *pair_at(out, m, columns, at / 2, ordered) = pack_act(v.x, v.y);
            else
                *(float2*)(to + at) = v;
            return {};
        }
    }

    DEVICE static float2 sum(float2 a, float2 b) { return {a.x + b.x, a.y + b.y}; }
};

// Writes a thread's sums of rows m and m + 8, as tensor cores leave them: d[4j], d[4j+1] are row m,
// columns n + 8j, n + 8j + 1, and d[4j+2], d[4j+3] the same of row m + 8.
template <int KIND, int N>
DEVICE void write_sums(const Output& y, const float (&d)[N], int m, int n, int rows) {
    constexpr int AT_ONCE = 4;
#pragma unroll
    for (int first = 0; first < N / 8; first += AT_ONCE) {
        Four factors[AT_ONCE];
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++)
            if (first + i < N / 8) factors[i] = y.factors<KIND>(n + (first + i) * 16);
#pragma unroll
        for (int r = 0; r < 2; r++) {
            if (m + r * 8 >= rows) continue;
            Added added[AT_ONCE] = {};
#pragma unroll
            for (int i = 0; i < AT_ONCE; i++)
                if (KIND == PLAIN_OUT && first + i < N / 8)
                    added[i] = y.added(m + r * 8, n + (first + i) * 16);
#pragma unroll
            for (int i = 0; i < AT_ONCE; i++) {
                if (first + i >= N / 8) continue;
                const float* a = d + (first + i) * 8 + r * 2;
                y.write<KIND>(m + r * 8, n + (first + i) * 16, {{a[0], a[1]}, {a[4], a[5]}},
                              factors[i], added[i]);
            }
        }
    }
}

// Writes a thread's sums of packed rows n and n + 8, n % 16 < 8, as tensor cores leave them where
// weights are A: d[4j], d[4j+1] are row n by rows m + 8j, m + 8j + 1 of x, and d[4j+2], d[4j+3] row
// n + 8 by the same. Eight lanes have neighbouring columns, which fill 32 bytes.
template <int KIND, int N>
DEVICE void write_columns(const Output& y, const float (&d)[N], int n, int m, int rows) {
    constexpr int OUTPUTS = KIND == PLAIN_OUT ? 2 : 1, AT_ONCE = 4;
    float factors[2] = {y.factor[n], y.factor[n + 8]}, bias[2] = {};
    int to = KIND == PLAIN_OUT ? n : n / 16 * 8 + n % 8;
    bool there[2] = {to < y.stride, OUTPUTS == 2 && to + 8 < y.stride};
#pragma unroll
    for (int h = 0; h < OUTPUTS; h++)
        if (KIND == PLAIN_OUT && y.bias && there[h]) bias[h] = y.bias[to + 8 * h];
    u64 at = (u64)m * y.stride + to;
#pragma unroll
    for (int first = 0; first < N / 2; first += AT_ONCE) {  // rows m + i / 2 * 8 + i % 2
        float residual[AT_ONCE][2] = {};
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++)
#pragma unroll
            for (int h = 0; h < OUTPUTS; h++)
                if (KIND == PLAIN_OUT && y.residual && there[h] &&
                    m + (first + i) / 2 * 8 + i % 2 < rows)
                    residual[i][h] = y.residual[at + (i / 2 * 8 + i % 2) * y.stride + 8 * h];
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++) {
            const float* a = d + (first + i) / 2 * 4 + i % 2;
            bool real = m + (first + i) / 2 * 8 + i % 2 < rows;
            float* out = y.out + at + (i / 2 * 8 + i % 2) * y.stride;
            float v[2] = {a[0] * factors[0], a[2] * factors[1]};
            if (KIND != PLAIN_OUT) v[0] = gated(KIND, v[0], v[1]);
#pragma unroll
            for (int h = 0; h < OUTPUTS; h++)
                if (real && there[h]) out[8 * h] = v[h] + bias[h] + residual[i][h];
        }
        at += AT_ONCE * 4 * y.stride;
    }
}

// As `write_sums`, of a gated product whose only reader multiplies halves: `out` is chunked halves
// (`act.cuh`) of padded_rows rows, and stride a multiple of 128. Of 16 outputs each lane writes 8
// of one row.
template <int KIND, int N>
DEVICE void write_halves(const Output& y, const float (&d)[N], int m, int n, int rows,
                         int padded_rows) {
    int t = n / 2 % 4, row = m + t / 2 * 8;
#pragma unroll
    for (int first = 0; first < N / 8; first += 2) {
        int vector = n / 16 + first;
        Four factors[2];
        u32 words[4];
#pragma unroll
        for (int i = 0; i < 2; i++) factors[i] = y.factors<KIND>(n + (first + i) * 16);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const float* a = d + (first + i % 2) * 8 + i / 2 * 2;
            float2 v = gated_pair(KIND, scaled({{a[0], a[1]}, {a[4], a[5]}}, factors[i % 2]));
            words[i] = pack_act(v.x, v.y);
        }
        uint4 halves = traded(words, t);
        if (row < rows && vector * 8 < y.stride)
            *(uint4*)((u8*)y.out + vector_offset(row, padded_rows, vector + t % 2)) = halves;
    }
}
