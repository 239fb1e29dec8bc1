// Attention of single rows over a long KV cache: the keys of a row are split over blocks, and the
// last block of a row combines the parts.
//
//   y[h] = sum_j p_j v_j,  p = softmax(scale * q[h] . k_j),  j <= position, j > position - window
//
// Shapes:  q, y f32 [rows][n_heads][HD]; positions, seqs i32 [rows]; page_table i32 [slots]
//          [max_pages], key j of slot s in cell page_table[s][j / 64] * 64 + j % 64; planes as
//          kv.py. parts f32: per (row, kv head, head tile, split) a record of 8 x (HD + 2) floats.
//          counters u32, one a (row, kv head, head tile), zero before and after.
// Who:     a work item is (row, kv head, tile of up to 8 of its query heads, split). Splits are
//          runs of whole 64-key pages, their number fixed by the row's own length (at most SPLITS),
//          so a row's result never depends on its batch mates. Blocks of 4 warps walk the items;
//          how many there are is computed from `positions`, so the launch never changes. Within a
//          page a warp takes 16 keys. Query heads are the rows of the tensor cores' tile: its rows
//          0-7 hold the upper halves of q (or p), rows 8-15 the rest, so both products are exact
//          to about 22 bits at no cost. K and V go from memory to registers in 16-byte pieces; the
//          sums over head features and over keys are permuted so that no piece has to move.
// Floor:   bytes of the keys and values once.
// Limits:  HD 64, 80, 96, 128, 256; any GROUP; at most 64 rows a launch.
// Numerics: scores, softmax and sums in f32. q8_0 values are rounded to halves after their scale;
//          f32 values enter as two halves. Masked keys count exactly 0 and are not read; a row
//          without keys gives 0.
// Macros:  HD, GROUP (query heads a kv head), KV, SPLITS, SOFTCAP (0/1).
#include "lib/attention.cuh"

constexpr int WARPS = 4, THREADS = WARPS * WARP, TILE = 8, KEYS = 16, MAX_ROWS = 64;
constexpr int HEAD_TILES = (GROUP + TILE - 1) / TILE;
constexpr int CHUNKS = (HD + 31) / 32;            // of 32 head features for K, the last may be 16
constexpr int BANDS = (HD + 63) / 64;             // of 64 head features for V, the last less
constexpr int RECORD = TILE * (HD + 2);           // 8 outputs, 8 maxima, 8 sums
constexpr bool PRECISE = KV == KV_F32;            // values of two halves

DEVICE constexpr int chunk_values(int c) { return HD - 32 * c >= 32 ? 8 : 4; }  // a lane's
DEVICE constexpr int band_values(int b) { return HD - 64 * b >= 64 ? 8 : (HD - 64 * b) / 8; }

// Up to 8 cached values as halves, and what rounding left of them where PRECISE.
struct Values {
    u32 high[4], low[4];
};

// N values at feature `d` of row `row`; zeros unless valid.
template <int N>
DEVICE void load_values(Values& v, const u8* plane, const f16* scales, i64 row, int d, bool valid) {
#pragma unroll
    for (int i = 0; i < N / 2; i++) v.high[i] = v.low[i] = 0;
    if (!valid) return;
    if constexpr (KV == KV_F16) {
        const u8* p = plane + (row * HD + d) * 2;
        if constexpr (N == 8) {
            uint4 w = *(const uint4*)p;
            v.high[0] = w.x, v.high[1] = w.y, v.high[2] = w.z, v.high[3] = w.w;
        } else if constexpr (N == 4) {
            uint2 w = *(const uint2*)p;
            v.high[0] = w.x, v.high[1] = w.y;
        } else {
            v.high[0] = *(const u32*)p;
        }
    } else if constexpr (KV == KV_Q8_0) {
        constexpr int group = scale_group(HD);
        const u8* p = plane + row * HD + d;
        f16 scale = scales[row * (HD / group) + d / group];
        f16x2 both = join_f16(scale, scale);
        if constexpr (N == 2) {
            v.high[0] = bytes_to_f16(*(const u16*)p, 0, both);
        } else {
#pragma unroll
            for (int i = 0; i < N / 4; i++) {
                u32 w = *(const u32*)(p + 4 * i);
                v.high[2 * i] = bytes_to_f16(w, 0, both);
                v.high[2 * i + 1] = bytes_to_f16(w, 1, both);
            }
        }
    } else {
        const float2* p = (const float2*)((const float*)plane + row * HD + d);
#pragma unroll
        for (int i = 0; i < N / 2; i++) {
            float2 w = p[i];
            v.high[i] = pack_f16(w.x, w.y);
            v.low[i] = pack_f16(w.x - low_f32(v.high[i]), w.y - high_f32(v.high[i]));
        }
    }
}

struct Shared {
    uint4 q[CHUNKS][2][WARP];  // upper halves and rest of q, as the lanes' A fragments
    float sums[WARPS][TILE][HD];
    float maxima[WARPS][TILE], totals[WARPS][TILE];
    float weights[SPLITS][TILE];
    int first_item[MAX_ROWS + 1];
    int last;
};

// A row's keys [first, end) and how they are split: part s takes pages_each pages.
struct Span {
    int first, end, first_page, pages_each, parts;
};

DEVICE Span span_of(int position, int window) {
    Span s;
    s.end = position + 1;
    s.first = window > 0 && s.end > window ? s.end - window : 0;
    s.first_page = s.first / PAGE;
    int pages = position < 0 ? 0 : position / PAGE - s.first_page + 1;
    s.pages_each = (pages + SPLITS - 1) / SPLITS;
    s.parts = pages ? (pages + s.pages_each - 1) / s.pages_each : 0;
    return s;
}

// Bring the tile's queries, scaled, into shared memory as A fragments.
DEVICE void load_queries(Shared& shared, const float* q, int heads, float factor) {
    for (int i = threadIdx.x; i < CHUNKS * WARP; i += THREADS) {
        int c = i / WARP, lane = i % WARP, g = lane / 4, t = lane % 4;
        u32 high[4] = {0, 0, 0, 0}, low[4] = {0, 0, 0, 0};
        int n = 32 * c + 32 <= HD ? 8 : 4;
        const float* p = q + g * HD + 32 * c + n * t;
        if (g < heads) {
            for (int k = 0; k < n / 2; k++) {
                float x = p[2 * k] * factor, y = p[2 * k + 1] * factor;
                high[k] = pack_f16(x, y);
                low[k] = pack_f16(x - low_f32(high[k]), y - high_f32(high[k]));
            }
        }
        shared.q[c][0][lane] = make_uint4(high[0], high[1], high[2], high[3]);
        shared.q[c][1][lane] = make_uint4(low[0], low[1], low[2], low[3]);
    }
}

// Scores of 8 keys (tile column g of this lane's B fragment is key row `row`).
DEVICE void scores(float (&s)[4], const Shared& shared, const u8* plane, const f16* scales, i64 row,
                   bool valid) {
    int lane = threadIdx.x % WARP, t = lane % 4;
    // as many pieces of the keys are on their way before the first is used as registers allow
    constexpr int AHEAD = HD <= 128 ? CHUNKS : PRECISE ? 1 : CHUNKS / 2;
#pragma unroll 1
    for (int first = 0; first < CHUNKS; first += AHEAD) {
        Values k[AHEAD];
#pragma unroll
        for (int i = 0; i < AHEAD; i++) {
            if (chunk_values(i) == 8)
                load_values<8>(k[i], plane, scales, row, 32 * (first + i) + 8 * t, valid);
            else
                load_values<4>(k[i], plane, scales, row, 32 * (first + i) + 4 * t, valid);
        }
#pragma unroll
        for (int i = 0; i < AHEAD; i++) {
            uint4 h = shared.q[first + i][0][lane], l = shared.q[first + i][1][lane];
            mma_f16(s, h.x, l.x, h.y, l.y, k[i].high[0], k[i].high[1]);
            if (PRECISE) mma_f16(s, h.x, l.x, h.y, l.y, k[i].low[0], k[i].low[1]);
            if (chunk_values(i) == 8) {
                mma_f16(s, h.z, l.z, h.w, l.w, k[i].high[2], k[i].high[3]);
                if (PRECISE) mma_f16(s, h.z, l.z, h.w, l.w, k[i].low[2], k[i].low[3]);
            }
        }
    }
}

// Add p V over 16 keys to `sums`: feature 64 b + n * g + i is column g of tile i of band b, n the
// band's values a lane.
DEVICE void add_values(float (&sums)[BANDS][8][4], const u32 (&p)[4], const u8* plane,
                       const f16* scales, const i64 (&row)[4], const bool (&valid)[4]) {
    int g = threadIdx.x % WARP / 4;
#pragma unroll
    for (int b = 0; b < BANDS; b++) {
        constexpr auto load = [](Values& v, int n, const u8* pl, const f16* sc, i64 r, int d,
                                 bool ok) {
            if (n == 8) load_values<8>(v, pl, sc, r, d, ok);
            if (n == 4) load_values<4>(v, pl, sc, r, d, ok);
            if (n == 2) load_values<2>(v, pl, sc, r, d, ok);
        };
        int n = band_values(b);
        Values v[4];
#pragma unroll
        for (int k = 0; k < 4; k++) load(v[k], n, plane, scales, row[k], 64 * b + n * g, valid[k]);
#pragma unroll
        for (int i = 0; i < 8; i++) {
            if (i >= n) continue;
            u32 pick = i % 2 ? 0x7632 : 0x5410;
            u32 b0 = permute(v[0].high[i / 2], v[1].high[i / 2], pick);
            u32 b1 = permute(v[2].high[i / 2], v[3].high[i / 2], pick);
            mma_f16(sums[b][i], p[0], p[1], p[2], p[3], b0, b1);
            if (PRECISE) {
                b0 = permute(v[0].low[i / 2], v[1].low[i / 2], pick);
                b1 = permute(v[2].low[i / 2], v[3].low[i / 2], pick);
                mma_f16(sums[b][i], p[0], p[1], p[2], p[3], b0, b1);
            }
        }
    }
}

// One item: keys of pages [page, end_page) for `heads` query heads; leaves each warp's maxima,
// totals and sums in shared memory.
DEVICE void attend(Shared& shared, const Span& span, int page, int end_page, const i32* pages,
                   const u8* k_plane, const u8* v_plane, const f16* k_scales, const f16* v_scales,
                   int kv_head, int n_kv_heads, float cap) {
    int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, g = lane / 4, t = lane % 4;
    float sums[BANDS][8][4] = {};
    float top = -INFINITY, total = 0.0f;  // of head g; the total is this lane's share
    for (; page < end_page; page++) {
        i64 base = ((i64)pages[page] * n_kv_heads + kv_head) * PAGE;
        int local = warp * KEYS;  // this warp's first key within the page
        int key = page * PAGE + local;
        if (key >= span.end || key + KEYS <= span.first) continue;
        auto seen = [&](int offset) {
            return key + offset >= span.first && key + offset < span.end;
        };
        float s[2][4] = {};
#pragma unroll
        for (int j = 0; j < 2; j++)
            scores(s[j], shared, k_plane, k_scales, base + local + 8 * j + g, seen(8 * j + g));
        float x[4], best = -INFINITY;
#pragma unroll
        for (int j = 0; j < 4; j++) {  // keys 2t, 2t + 1, 2t + 8, 2t + 9
            x[j] = s[j / 2][j % 2] + s[j / 2][j % 2 + 2];
            if (SOFTCAP) x[j] = capped(x[j], cap);
            if (!seen(8 * (j / 2) + 2 * t + j % 2)) x[j] = -INFINITY;
            best = fmaxf(best, x[j]);
        }
        best = fmaxf(best, __shfl_xor_sync(FULL_MASK, best, 1));
        best = fmaxf(best, __shfl_xor_sync(FULL_MASK, best, 2));
        float next = fmaxf(top, best);  // finite: this warp sees at least one key
        float decay = exp2_of(top - next);
        top = next;
        u32 p[4];
        float now = 0.0f;
#pragma unroll
        for (int j = 0; j < 2; j++) {
            float a = exp2_of(x[2 * j] - next), b = exp2_of(x[2 * j + 1] - next);
            now += a + b;
            p[2 * j] = pack_f16(a, b);
            p[2 * j + 1] = pack_f16(a - low_f32(p[2 * j]), b - high_f32(p[2 * j]));
        }
        total = total * decay + now;
#pragma unroll
        for (int b = 0; b < BANDS; b++)
#pragma unroll
            for (int i = 0; i < 8; i++)
#pragma unroll
                for (int c = 0; c < 4; c++) sums[b][i][c] *= decay;
        i64 row[4];
        bool valid[4];
#pragma unroll
        for (int j = 0; j < 4; j++) {
            int offset = 8 * (j / 2) + 2 * t + j % 2;
            row[j] = base + local + offset;
            valid[j] = seen(offset);
        }
        add_values(sums, p, v_plane, v_scales, row, valid);
    }
    total += __shfl_xor_sync(FULL_MASK, total, 1);
    total += __shfl_xor_sync(FULL_MASK, total, 2);
    if (t == 0) {
        shared.maxima[warp][g] = top;
        shared.totals[warp][g] = total;
    }
#pragma unroll
    for (int b = 0; b < BANDS; b++) {
        int n = band_values(b);
#pragma unroll
        for (int i = 0; i < 8; i++) {
            if (i >= n) continue;
#pragma unroll
            for (int c = 0; c < 2; c++)
                shared.sums[warp][g][64 * b + n * (2 * t + c) + i] =
                    sums[b][i][c] + sums[b][i][c + 2];
        }
    }
}

KERNEL __launch_bounds__(THREADS, HD <= 128 ? 3 : 1)
attention_decode(const float* q, const u8* k_plane, const u8* v_plane, const f16* k_scales,
                 const f16* v_scales, const i32* positions, const i32* seqs,
                 const i32* page_table, float* y, float* parts, u32* counters, int rows,
                 int n_kv_heads, int max_pages, int window, float scale, float cap) {
    extern __shared__ __align__(16) u8 memory[];
    Shared& shared = *(Shared*)memory;
    pdl_launch();
    pdl_wait();
    int thread = threadIdx.x, tiles = n_kv_heads * HEAD_TILES;
    // items before each row, by one warp
    if (thread < WARP) {
        int before = 0;
        for (int base = 0; base < rows; base += WARP) {
            int r = base + thread;
            int count = r < rows ? span_of(positions[r], window).parts * tiles : 0;
            int sum = count;
#pragma unroll
            for (int offset = 1; offset < WARP; offset *= 2) {
                int other = __shfl_up_sync(FULL_MASK, sum, offset);
                if (thread >= offset) sum += other;
            }
            if (r < rows) shared.first_item[r] = before + sum - count;
            before += __shfl_sync(FULL_MASK, sum, WARP - 1);
        }
        if (thread == 0) shared.first_item[rows] = before;
    }
    __syncthreads();
    int items = shared.first_item[rows];
    // a padded row reads nothing, but its output is defined
    for (int r = blockIdx.x; r < rows; r += gridDim.x)
        if (positions[r] < 0)
            for (int e = thread; e < n_kv_heads * GROUP * HD; e += THREADS)
                y[(i64)r * n_kv_heads * GROUP * HD + e] = 0.0f;

    for (int item = blockIdx.x; item < items; item += gridDim.x) {
        int row = 0;
        while (shared.first_item[row + 1] <= item) row++;
        Span span = span_of(positions[row], window);
        int inner = item - shared.first_item[row];
        int part = inner % span.parts, tile = inner / span.parts;
        int kv_head = tile / HEAD_TILES, first_head = tile % HEAD_TILES * TILE;
        int heads = GROUP - first_head < TILE ? GROUP - first_head : TILE;
        i64 at = ((i64)row * n_kv_heads * GROUP + kv_head * GROUP + first_head) * HD;
        load_queries(shared, q + at, heads, SOFTCAP ? scale : scale * LOG2E);
        __syncthreads();
        int page = span.first_page + part * span.pages_each;
        int end_page = page + span.pages_each;
        if (end_page > (span.end - 1) / PAGE + 1) end_page = (span.end - 1) / PAGE + 1;
        attend(shared, span, page, end_page, page_table + (i64)seqs[row] * max_pages, k_plane,
               v_plane, k_scales, v_scales, kv_head, n_kv_heads, cap);
        __syncthreads();
        // merge the warps, in order
        i64 slot = (i64)row * tiles + tile;
        float* record = parts + (slot * SPLITS + part) * RECORD;
        for (int e = thread; e < heads * HD; e += THREADS) {
            int h = e / HD, d = e % HD;
            float top = -INFINITY, sum = 0.0f, total = 0.0f;
#pragma unroll
            for (int w = 0; w < WARPS; w++) top = fmaxf(top, shared.maxima[w][h]);
#pragma unroll
            for (int w = 0; w < WARPS; w++) {
                float weight = exp2_of(shared.maxima[w][h] - top);
                sum += weight * shared.sums[w][h][d];
                total += weight * shared.totals[w][h];
            }
            if (span.parts == 1) {
                y[at + e] = sum / total;
            } else {
                record[h * HD + d] = sum;
                if (d == 0) record[TILE * HD + h] = top, record[TILE * (HD + 1) + h] = total;
            }
        }
        if (span.parts > 1) {
            // the last part of this row and tile to arrive combines them all
            __threadfence();
            __syncthreads();
            if (thread == 0) {
                u32 arrived = atomicAdd(counters + slot, 1);
                shared.last = arrived == span.parts - 1;
                if (shared.last) counters[slot] = 0;
            }
            __syncthreads();
            if (shared.last) {
                __threadfence();
                const float* all = parts + slot * SPLITS * RECORD;
                if (thread < heads) {
                    float top = -INFINITY, total = 0.0f;
                    for (int s = 0; s < span.parts; s++)
                        top = fmaxf(top, __ldcg(all + s * RECORD + TILE * HD + thread));
                    for (int s = 0; s < span.parts; s++) {
                        const float* r = all + s * RECORD + TILE * HD + thread;
                        float weight = exp2_of(__ldcg(r) - top);
                        shared.weights[s][thread] = weight;
                        total += weight * __ldcg(r + TILE);
                    }
                    shared.totals[0][thread] = 1.0f / total;
                }
                __syncthreads();
                for (int e = thread; e < heads * HD; e += THREADS) {
                    float sum = 0.0f;
#pragma unroll 8
                    for (int s = 0; s < span.parts; s++)
                        sum += shared.weights[s][e / HD] * __ldcg(all + s * RECORD + e);
                    y[at + e] = sum * shared.totals[0][e / HD];
                }
            }
        }
        __syncthreads();
    }
}
