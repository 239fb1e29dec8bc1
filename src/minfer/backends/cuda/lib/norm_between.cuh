// A norm between two products of the same rows, without a pass of its own.
//
// The product of x / rms(x) * norm is that of x * norm, over rms(x): one number for a row. So the
// product before writes its outputs x a second time, times `norm`, as the halves that the next one
// multiplies, and the sums of their squares; the next one divides its own sums.
//
// Memory: chunked halves of `columns` rows (`act.cuh`) of `stride` values, a multiple of 128;
// behind them f32 [row][stride / UNIT], the squares of UNIT neighbouring values each. The sums, and
// so a row's bits, do not depend on how many columns a block has, if it has whole units.
//
// Numerics: a product with halves of x * norm has an error of 2^-12 of each value, as with those of
// normed x, and of 2^-19 where |x * norm| < 2^-8; above 4 million it is infinite, and shows.
#include "lib/epilogue.cuh"

// N floats that are loaded together.
template <int SIZE>
struct alignas(4 * SIZE) Floats {
    static constexpr int N = SIZE;
    float of[N];

    DEVICE float sum() const {
        float all = 0.0f;
#pragma unroll
        for (int i = 0; i < N; i++) all += of[i];
        return all;
    }
};

// Of a thread's outputs in row m, columns n, n + 1, n + 8, n + 9, and of those that the other
// threads of its warp have: neighbours have the next columns. All of a warp call it.
template <int UNIT>
DEVICE void prepare_next(const Output& y, int m, int n, bool there, const Four& v,
                         const Four& norm) {
    float squares = v.a.x * v.a.x + v.a.y * v.a.y + v.b.x * v.b.x + v.b.y * v.b.y;
#pragma unroll
    for (int i = 1; i < UNIT / 4; i *= 2) squares += __shfl_xor_sync(FULL_MASK, squares, i);
    if (!there) return;
    *pair_at(y.next, m, y.columns, n / 2, y.ordered) =
        pack_act(v.a.x * norm.a.x, v.a.y * norm.a.y);
    *pair_at(y.next, m, y.columns, n / 2 + 4, y.ordered) =
        pack_act(v.b.x * norm.b.x, v.b.y * norm.b.y);
    float* sums = (float*)(y.next + (u64)y.columns * y.stride * 2);
    if (n % UNIT == 0) sums[m * (y.stride / UNIT) + n / UNIT] = squares;
}

// 1 / rms of up to ROWS rows of x, from what `prepared` has behind their halves. Eight threads
// share a row and add its sums in the same order always. Loads are on their way from `load` to
// `store`: one after another, for the rows that a warp has, they took longer than a norm's launch.
template <int UNIT, int ROWS, int N_THREADS>
struct RowScales {
    static constexpr int LANES = 8, AHEAD = 8, AT_ONCE = N_THREADS / LANES;
    static constexpr int ROUNDS = (ROWS + AT_ONCE - 1) / AT_ONCE;
    using Sums = Floats<UNIT == 16 ? 4 : 2>;  // K is a multiple of 128

    const Sums* rows_sums;
    int n;  // of a row
    Sums ahead[ROUNDS][AHEAD];

    DEVICE Sums at(int round, int i) const {
        int row = round * AT_ONCE + threadIdx.x / LANES, j = i * LANES + threadIdx.x % LANES;
        return row < ROWS && j < n ? rows_sums[row * n + j] : Sums{};
    }

    DEVICE void load(const u8* prepared, int k) {
        rows_sums = (const Sums*)(prepared + (u64)ROWS * k * 2);
        n = k / UNIT / Sums::N;
#pragma unroll
        for (int r = 0; r < ROUNDS; r++)
#pragma unroll
            for (int i = 0; i < AHEAD; i++) ahead[r][i] = at(r, i);
    }

    // To shared memory; those of rows that are not there may be anything.
    DEVICE void store(float* scales, int k, float eps) const {
#pragma unroll
        for (int r = 0; r < ROUNDS; r++) {
            float squares = 0.0f;
#pragma unroll
            for (int i = 0; i < AHEAD; i++) squares += ahead[r][i].sum();
            for (int i = AHEAD; i * LANES < n; i++) squares += at(r, i).sum();
#pragma unroll
            for (int i = 1; i < LANES; i *= 2) squares += __shfl_xor_sync(FULL_MASK, squares, i);
            int row = r * AT_ONCE + threadIdx.x / LANES;
            if (row < ROWS && threadIdx.x % LANES == 0) scales[row] = rsqrtf(squares / k + eps);
        }
    }
};
