// What recent tokens cost: y = logits, but for the tokens of each row's window.
//
//   v = x > 0 ? x / repeat : x * repeat;  y = v - count * frequency - presence
//
// Shapes:  x, y f32 [rows][n_vocab], y may be x; penalties f32 [rows][3]: repeat, frequency,
//          presence; recent i32 [rows][WINDOW]; ids i32 [n_ids]; index i32 [rows]. A row's window
//          is its recent tokens and ids[index[row]], the newest, which the step before may have
//          chosen on the device. Ids outside of the vocabulary stand for none.
// Who:     grid (blocks, rows): a block copies PART logits of a row, then thread i looks whether
//          token i of the window is among them, is the first of its kind, and how often it is
//          there.
// Floor:   the logits twice, nothing where y is x but the window's.
// Limits:  WINDOW 255, one less than the threads.
// Numerics: f32, each operation rounded on its own: bit for bit what the host's path computes.
// Macros:  none.
#include "lib/base.cuh"

constexpr int THREADS = 256, WINDOW = THREADS - 1, PART = 8192;

KERNEL __launch_bounds__(THREADS)
    penalize(const float* x, const float* penalties, const i32* recent, const i32* ids,
             const i32* index, float* y, int n_vocab, int n_ids) {
    __shared__ i32 window[THREADS];
    pdl_launch();
    pdl_wait();
    int row = blockIdx.y, t = threadIdx.x;
    const float* from = x + (i64)row * n_vocab;
    float* to = y + (i64)row * n_vocab;
    int first = blockIdx.x * PART, end = min(n_vocab, first + PART);
    int at = index[row];
    int token = t < WINDOW ? recent[(i64)row * WINDOW + t] : at >= 0 && at < n_ids ? ids[at] : -1;
    window[t] = token;
    bool mine = token >= first && token < end;
    float value = mine ? from[token] : 0.0f;
    __syncthreads();
    int count = 0;
    for (int i = 0; mine && i < THREADS; i++) {
        if (window[i] != token) continue;
        mine = i >= t || count > 0;  // else an earlier thread has it
        count++;
    }
    if (x != y)
        for (int i = first + t; i < end; i += THREADS) to[i] = from[i];
    __syncthreads();
    if (!mine) return;
    const float* p = penalties + 3 * row;
    value = value > 0.0f ? __fdiv_rn(value, p[0]) : __fmul_rn(value, p[0]);
    value = __fsub_rn(value, __fmul_rn((float)count, p[1]));
    to[token] = __fsub_rn(value, p[2]);
}
