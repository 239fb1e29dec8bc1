// Attention of many rows over the KV cache, in the manner of FlashAttention: a tile of queries
// stays in registers, keys and values stream through shared memory, the softmax is kept running.
//
//   y[h] = sum_j p_j v_j,  p = softmax(scale * q[h] . k_j),  j <= position, j > position - window
//
// Shapes:  q, y f32 [rows][n_heads][HD], or with HALVES y chunked halves of padded_rows rows of
//          n_heads * HD, a multiple of 128 (`lib/act.cuh`); positions, seqs i32 [rows]; page_table
//          i32 [slots][max_pages], key j of slot s in cell page_table[s][j / 64] * 64 + j % 64; f16
//          planes as kv.py.
// Who:     grid (tiles, kv heads). A tile is 64 consecutive (row, query head of the kv head) pairs,
//          so the heads of a GQA group share every key that is loaded; 4 warps of 16 pairs. Keys
//          pass in tiles of KEYS, two in flight. Rows of several sequences may share a tile: the
//          tile walks the keys of each run of rows in turn, the other rows masked, which changes
//          nothing in them, so a row's result does not depend on where it stands. Late tiles start
//          first: they have the most keys.
// Floor:   4 * HD flops a query and key on the tensor cores; memory is far below.
// Limits:  f16 cache (`attention_expand.cu` makes one of other types); HD a multiple of 16 up
//          to 256; any GROUP.
// Numerics: q, k, v and p in halves (q rounded before scaling, |q| <= 65504), sums and softmax in
//          f32. Masked keys count exactly 0; keys past a run's last are never read, but filled with
//          zeros; the first tile needs no rescaling, and rescaling by 1 is skipped; a row without
//          keys gives 0.
// Macros:  HD, GROUP (query heads a kv head), SOFTCAP (0/1), HALVES (0;
//          1 chunked, 2 ordered).
#include "lib/attention_rows.cuh"

constexpr int WARPS = 4, THREADS = WARPS * WARP, ROWS = WARPS * 16;
constexpr int KEYS = HD <= 128 ? 64 : 32;  // a tile of keys lies within one page
constexpr int STRIDE = HD + 8;  // halves a row in shared memory: no bank conflicts
constexpr int TILE = KEYS * STRIDE;
constexpr int STAGES = 2;
constexpr bool Q_IN_REGISTERS = HD <= 128;
constexpr int STEPS = HD / 16;  // of 16 head features

// Bring KEYS keys and values of a block, from key `first` of the page on, into shared memory; keys
// outside of [low, high] of the sequence become zeros.
DEVICE void load_tile(f16* k, f16* v, const u8* k_plane, const u8* v_plane, i64 block,
                      int first_key, int low, int high) {
#pragma unroll 4
    for (int i = threadIdx.x; i < KEYS * HD / 8; i += THREADS) {
        int key = i / (HD / 8), d = i % (HD / 8) * 8, in_page = first_key % PAGE + key;
        bool seen = first_key + key >= low && first_key + key <= high;
        f16 *to_k = k + key * STRIDE + d, *to_v = v + key * STRIDE + d;
        i64 at = (block * PAGE * HD + value_at<HD, KV_F16>(in_page, d)) * 2;
        copy16_async(to_k, k_plane + at, seen ? 16 : 0);
        copy16_async(to_v, v_plane + at, seen ? 16 : 0);
    }
    copy_commit();
}

// Scores of a warp's 16 queries and KEYS keys.
DEVICE void multiply_keys(float (&s)[KEYS / 8][4], const u32 (&q)[STEPS][4], const f16* q_shared,
                          const f16* k) {
    int lane = threadIdx.x % WARP, matrix = lane / 8, r = lane % 8;
    u32 at = shared_address(k + (8 * (matrix / 2) + r) * STRIDE + 8 * (matrix % 2));
    u32 q_at = Q_IN_REGISTERS
                   ? 0
                   : shared_address(q_shared + (8 * (matrix % 2) + r) * STRIDE + 8 * (matrix / 2));
#pragma unroll
    for (int step = 0; step < STEPS; step++) {
        u32 a[4];
        if constexpr (Q_IN_REGISTERS) {
#pragma unroll
            for (int i = 0; i < 4; i++) a[i] = q[step][i];
        } else {
            load_matrix4(a, q_at + 32 * step);
        }
#pragma unroll
        for (int n = 0; n < KEYS / 16; n++) {
            u32 b[4];
            load_matrix4(b, at + (16 * n * STRIDE + 16 * step) * 2);
            mma_f16(s[2 * n], a[0], a[1], a[2], a[3], b[0], b[1]);
            mma_f16(s[2 * n + 1], a[0], a[1], a[2], a[3], b[2], b[3]);
        }
    }
}

// Add probabilities times values.
DEVICE void multiply_values(State<HD>& state, const float (&s)[KEYS / 8][4], const f16* v) {
    int lane = threadIdx.x % WARP, matrix = lane / 8, r = lane % 8;
    u32 at = shared_address(v + (8 * (matrix % 2) + r) * STRIDE + 8 * (matrix / 2));
#pragma unroll
    for (int step = 0; step < KEYS / 16; step++) {
        u32 a0 = pack_f16(s[2 * step][0], s[2 * step][1]);
        u32 a1 = pack_f16(s[2 * step][2], s[2 * step][3]);
        u32 a2 = pack_f16(s[2 * step + 1][0], s[2 * step + 1][1]);
        u32 a3 = pack_f16(s[2 * step + 1][2], s[2 * step + 1][3]);
#pragma unroll
        for (int n = 0; n < HD / 16; n++) {
            u32 b[4];
            load_transposed4(b, at + (16 * step * STRIDE + 16 * n) * 2);
            mma_f16(state.out[2 * n], a0, a1, a2, a3, b[0], b[1]);
            mma_f16(state.out[2 * n + 1], a0, a1, a2, a3, b[2], b[3]);
        }
    }
}

KERNEL __launch_bounds__(THREADS, HD <= 128 ? 2 : 1)
    attention_prefill(const float* q, const u8* k_plane, const u8* v_plane, const i32* positions,
                      const i32* seqs, const i32* page_table, float* y, int rows, int n_kv_heads,
                      int max_pages, int window, float scale, float cap, int padded_rows) {
    extern __shared__ __align__(16) f16 memory[];
    pdl_launch();
    pdl_wait();
    int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, g = lane / 4, t = lane % 4;
    int kv_head = blockIdx.y, first_pair = (gridDim.x - 1 - blockIdx.x) * ROWS;
    f16* q_shared = memory + 2 * STAGES * TILE + warp * 16 * STRIDE;

    // this lane's two pairs, and its queries
    int row[2];
    i64 at[2];
    bool real[2];
#pragma unroll
    for (int r = 0; r < 2; r++) {
        int pair = first_pair + warp * 16 + g + 8 * r;
        row[r] = pair / GROUP;
        real[r] = row[r] < rows && positions[row[r]] >= 0;
        at[r] = (((i64)row[r] * n_kv_heads + kv_head) * GROUP + pair % GROUP) * HD + 2 * t;
    }
    u32 queries[STEPS][4];
#pragma unroll
    for (int step = 0; step < STEPS; step++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            float2 x = make_float2(0.0f, 0.0f);
            int d = 16 * step + 8 * (i / 2);
            if (real[i % 2]) x = *(const float2*)(q + at[i % 2] + d);
            u32 both = pack_f16(x.x, x.y);
            if constexpr (Q_IN_REGISTERS)
                queries[step][i] = both;
            else
                *(u32*)(q_shared + (g + 8 * (i % 2)) * STRIDE + d + 2 * t) = both;
        }
    __syncwarp();

    State<HD> state;
    state.clear();
    float factor = SOFTCAP ? 1.0f : scale * LOG2E;
    bool fresh = true;
    int last_row = min((first_pair + ROWS - 1) / GROUP, rows - 1);
    bool whole = first_pair + ROWS <= rows * GROUP;
    for (int next = first_pair / GROUP; next <= last_row;) {
        Run run = find_run(next, last_row + 1, positions, seqs);
        if (run.end == run.first) break;  // padded rows are the last
        bool alone = whole && run.first == first_pair / GROUP && run.end > last_row;
        const i32* pages = page_table + (i64)seqs[run.first] * max_pages;
        int low = window > 0 ? max(0, run.lowest - window + 1) : 0;
        int tile = low / KEYS, last_tile = run.highest / KEYS;
        int last[2] = {run.last_key(row[0], positions), run.last_key(row[1], positions)};
        auto issue = [&](int i, int stage) {
            int key = i * KEYS;
            i64 block = kv_block(pages[key / PAGE], kv_head, n_kv_heads);
            f16* k = memory + 2 * stage * TILE;
            load_tile(k, k + TILE, k_plane, v_plane, block, key, low, run.highest);
        };
        issue(tile, 0);
        for (int stage = 0; tile <= last_tile; tile++, stage ^= 1) {
            if (tile < last_tile) {
                issue(tile + 1, stage ^ 1);
                copy_wait<1>();
            } else {
                copy_wait<0>();
            }
            __syncthreads();
            const f16* k = memory + 2 * stage * TILE;
            float s[KEYS / 8][4] = {};
            multiply_keys(s, queries, q_shared, k);
            int key = tile * KEYS;
            if (SOFTCAP) cap_scores(s, scale, cap);
            if (run.masks(key, KEYS, window, alone)) mask_scores(s, key, last, window);
            Decay decay = softmax(s, state, factor);
            if (!fresh && decay.needed()) rescale(state, decay);
            fresh = false;
            multiply_values(state, s, k + TILE);
            __syncthreads();
        }
        next = run.end;
    }

    state.finish();
#if HALVES
    write_halves<GROUP>(state, y, first_pair + warp * 16 + g, t, rows, kv_head, padded_rows);
#else
#pragma unroll
    for (int r = 0; r < 2; r++) {
        if (row[r] >= rows) continue;
#pragma unroll
        for (int n = 0; n < HD / 8; n++)
            *(float2*)(y + at[r] + 8 * n) =
                make_float2(state.out[n][2 * r], state.out[n][2 * r + 1]);
    }
#endif
}
