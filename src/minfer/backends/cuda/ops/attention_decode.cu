// Attention of single rows over a long KV cache: the keys of a row are split over blocks, and the
// last block of a row combines the parts.
//
//   y[h] = sum_j p_j v_j,  p = softmax(scale * q[h] . k_j),  j <= position, j > position - window
//
// Shapes:  q, y f32 [rows][n_heads][HD], or y as the x of the one product that reads it: chunked
//          halves of OUT_COLUMNS rows, OUT_ORDERED or not (`matmul_batch.cu`); positions, seqs i32
//          [rows]; page_table i32 [slots][max_pages], key j of slot s in cell
//          page_table[s][j / 64] * 64 + j % 64; planes as kv.py. parts f32: per (row, kv head, head
//          tile, split) a record of 8 x (HD + 2) floats.
//          counters u32, one a (row, kv head, head tile), zero before and after.
// Who:     a work item is (row, kv head, tile of up to 8 of its query heads, part). Parts are runs
//          of whole pairs of pages, their number fixed by the row's own length (at most SPLITS). A
//          part is walked in 8 strands, of 16 keys of every second page. So a row's result depends
//          on neither its batch mates nor on WARPS: blocks of 8 warps, a strand each, are soonest
//          done with one item; of many items, two blocks of 4 warps, two strands each, let one
//          compute while the other fetches. How many items there are is computed from `positions`,
//          so the launch never changes. Query heads are the rows of the tensor cores' tile: its
//          rows 0-7 hold the upper halves of q (or p), rows 8-15 the rest, so both products are
//          exact to about 22 bits at no cost. K and V go from memory to registers in 16-byte
//          pieces; the sums over head features and over keys are permuted so that no piece has to
//          move.
// Overlap: positions, seqs and the page table are inputs of the step, and only a row's last
//          `new_keys` keys may be stored in this step; so the first pieces are fetched before the
//          kernel before ends, and again if they are that new.
// Floor:   bytes of the keys and values once.
// Limits:  HD a multiple of 16 up to 256; any GROUP; at most 64 rows a launch.
// Numerics: scores, softmax and sums in f32. q8_0 values are rounded to halves after their scale;
//          f32 values enter as two halves. Masked keys count exactly 0 and are not read; a row
//          without keys gives 0.
// Macros:  HD, GROUP (query heads a kv head), KV, SPLITS, SOFTCAP (0/1), WARPS (4 or 8),
//          OUT_COLUMNS (0 for f32), OUT_ORDERED (0/1).
// Versions: 2026-11-30, 28 heads, 4 kv heads of 128, f16, one H200, us at depth 512 / 2048 / 8192,
//          and for 64 rows at 512:
//          K then V, parts of a page, combine over one value a thread: 9.8 / 18.9 / 24.2, 72
//          8 warps, K and V ahead, wide combine: 5.7 / 5.7 / 9.8, 65
//          items streamed, no bank conflicts, arrival deferred: 5.8 / 5.8 / 10.0, 47
//          4 warps, two blocks a multiprocessor: 7.6 / 7.9 / 12.3, 39; hence both, by rows
#include "lib/act.cuh"
#include "lib/pieces.cuh"
#include "lib/strands.cuh"

constexpr int THREADS = WARPS * WARP, TILE = 8, MAX_ROWS = 64;
constexpr int STRANDS = PAGES * PAGE / KEYS, WALKS = STRANDS / WARPS;  // a part's, a warp's
constexpr int HEAD_TILES = (GROUP + TILE - 1) / TILE;
constexpr int CHUNKS = (HD + 31) / 32;  // of 32 head features for K, the last may be 16
constexpr int BANDS = HD / 64 + HD % 64 / 32 + HD % 32 / 16;  // of 64, then 32, then 16 for V
constexpr int RECORD = TILE * (HD + 2);  // 8 outputs, 8 maxima, 8 sums
constexpr bool EARLY = HD <= 128 && !PRECISE;  // registers hold keys and values on their way

DEVICE constexpr int chunk_values(int c) { return HD - 32 * c >= 32 ? 8 : 4; }  // a lane's
DEVICE constexpr int band_values(int b) {
    return b < HD / 64 ? 8 : b == HD / 64 && HD % 64 >= 32 ? 4 : 2;
}
DEVICE constexpr int band_start(int b) { return b <= HD / 64 ? 64 * b : HD / 32 * 32; }

// Where an item's results go: its row and tile, its part of how many, its heads, the first in y.
struct Place {
    int slot, part, parts, heads, at;
};

struct Shared {
    uint4 q[2][CHUNKS][2][WARP];  // of two items: upper halves and rest, as the lanes' A fragments
    float sums[STRANDS][TILE][HD + 4];  // a row starts four banks after the one before
    float maxima[STRANDS][TILE], totals[STRANDS][TILE];
    float weights[TILE][SPLITS], inverse[TILE];
    int first_item[MAX_ROWS + 1];
    int last;
    Place places[2];  // of an item and of the one before
    Item items[2][WARPS];  // this and the next, as each warp sees them: registers are short
    Plan plan;
};

struct Planes {
    const u8 *k, *v;
    const f16 *k_scales, *v_scales;
};

// The lane's pieces of 16 keys (tiles j of 8: key 8j + g), and of their values (keys 2t, 2t + 1,
// 2t + 8, 2t + 9).
struct Keys {
    Raw piece[2][CHUNKS];
};
struct Vals {
    Raw piece[BANDS][4];
};

DEVICE void fetch_keys(Keys& k, const Planes& planes, const Walk& w) {
    int g = threadIdx.x % WARP / 4, t = threadIdx.x % 4;
#pragma unroll
    for (int j = 0; j < 2; j++)
#pragma unroll
        for (int c = 0; c < CHUNKS; c++) {
            int key = w.local + 8 * j + g;
            bool valid = !w.done() && w.seen(8 * j + g);
            if (chunk_values(c) == 8)
                fetch<8>(k.piece[j][c], planes.k, planes.k_scales, w.block, key, 32 * c + 8 * t,
                         valid);
            else
                fetch<4>(k.piece[j][c], planes.k, planes.k_scales, w.block, key, 32 * c + 4 * t,
                         valid);
        }
}

DEVICE void fetch_band(Raw (&piece)[4], int b, const Planes& planes, const Walk& w) {
    int g = threadIdx.x % WARP / 4, t = threadIdx.x % 4;
#pragma unroll
    for (int j = 0; j < 4; j++) {
        int offset = 8 * (j / 2) + 2 * t + j % 2, key = w.local + offset;
        bool valid = !w.done() && w.seen(offset);
        int n = band_values(b), d = band_start(b) + n * g;
        if (n == 8) fetch<8>(piece[j], planes.v, planes.v_scales, w.block, key, d, valid);
        if (n == 4) fetch<4>(piece[j], planes.v, planes.v_scales, w.block, key, d, valid);
        if (n == 2) fetch<2>(piece[j], planes.v, planes.v_scales, w.block, key, d, valid);
    }
}

DEVICE void fetch_vals(Vals& v, const Planes& planes, const Walk& w) {
#pragma unroll
    for (int b = 0; b < BANDS; b++) fetch_band(v.piece[b], b, planes, w);
}

// Bring an item's queries, scaled, into shared memory as A fragments.
DEVICE void load_queries(uint4 (&to)[CHUNKS][2][WARP], const float* q, int heads, float factor) {
    for (int i = threadIdx.x; i < CHUNKS * WARP; i += THREADS) {
        int c = i / WARP, lane = i % WARP, g = lane / 4, t = lane % 4;
        u32 high[4] = {0, 0, 0, 0}, low[4] = {0, 0, 0, 0};
        int n = 32 * c + 32 <= HD ? 8 : 4;
        const float2* p = (const float2*)(q + g * HD + 32 * c + n * t);
        if (g < heads) {
#pragma unroll
            for (int k = 0; k < 4; k++) {
                if (k >= n / 2) continue;
                float x = p[k].x * factor, y = p[k].y * factor;
                high[k] = pack_f16(x, y);
                low[k] = pack_f16(x - low_f32(high[k]), y - high_f32(high[k]));
            }
        }
        to[c][0][lane] = make_uint4(high[0], high[1], high[2], high[3]);
        to[c][1][lane] = make_uint4(low[0], low[1], low[2], low[3]);
    }
}

// Add q . k over 32 (16) features to the scores of 8 keys.
DEVICE void multiply_chunk(float (&s)[4], const uint4 (&q)[CHUNKS][2][WARP], int c,
                           const Raw& piece) {
    int lane = threadIdx.x % WARP;
    uint4 h = q[c][0][lane], l = q[c][1][lane];
    bool full = chunk_values(c) == 8;
    Values k = full ? expand<8>(piece) : expand<4>(piece);
    mma_f16(s, h.x, l.x, h.y, l.y, k.high[0], k.high[1]);
    if (PRECISE) mma_f16(s, h.x, l.x, h.y, l.y, k.low[0], k.low[1]);
    if (full) {
        mma_f16(s, h.z, l.z, h.w, l.w, k.high[2], k.high[3]);
        if (PRECISE) mma_f16(s, h.z, l.z, h.w, l.w, k.low[2], k.low[3]);
    }
}

// Add p V over 16 keys: feature n * g + i of band b is column g of its tile i, n the band's values
// a lane.
DEVICE void multiply_band(float (&sums)[8][4], const u32 (&p)[4], int b, const Raw (&piece)[4]) {
    int n = band_values(b);
#pragma unroll
    for (int pair = 0; pair < 4; pair++) {
        if (2 * pair >= n) continue;
        u32 high[4], low[4];
#pragma unroll
        for (int j = 0; j < 4; j++) expand_pair(piece[j], pair, high[j], low[j]);
#pragma unroll
        for (int i = 0; i < 2; i++) {
            u32 pick = i ? 0x7632 : 0x5410;
            float(&sum)[4] = sums[2 * pair + i];
            mma_f16(sum, p[0], p[1], p[2], p[3], permute(high[0], high[1], pick),
                    permute(high[2], high[3], pick));
            if (PRECISE)
                mma_f16(sum, p[0], p[1], p[2], p[3], permute(low[0], low[1], pick),
                        permute(low[2], low[3], pick));
        }
    }
}

// One strand, its first keys and values on their way; leaves its maxima, totals and sums in shared
// memory, and the first keys and values of the walk `after` on their way.
DEVICE void attend(Shared& shared, int strand, const uint4 (&q)[CHUNKS][2][WARP], Walk w,
                   const Walk& after, Keys& k, Vals& v, const Planes& planes,
                   const i32* table, int kv_head, int n_kv_heads, float cap) {
    int lane = threadIdx.x % WARP, g = lane / 4, t = lane % 4;
    float sums[BANDS][8][4] = {};
    float top = -INFINITY, total = 0.0f;  // of head g; the total is this lane's share
    if (EARLY && w.done()) {  // a warp without keys here
        fetch_keys(k, planes, after);
        fetch_vals(v, planes, after);
    }
    while (!w.done()) {
        float s[2][4] = {};
        if (EARLY) {
#pragma unroll
            for (int j = 0; j < 2; j++)
#pragma unroll
                for (int c = 0; c < CHUNKS; c++) multiply_chunk(s[j], q, c, k.piece[j][c]);
        } else {
#pragma unroll 1
            for (int c = 0; c < CHUNKS; c++)
#pragma unroll
                for (int j = 0; j < 2; j++) {
                    Raw piece;
                    int key = w.local + 8 * j + g, n = 32 * c + 32 <= HD ? 8 : 4;
                    if (n == 8)
                        fetch<8>(piece, planes.k, planes.k_scales, w.block, key, 32 * c + 8 * t,
                                 w.seen(8 * j + g));
                    else
                        fetch<4>(piece, planes.k, planes.k_scales, w.block, key, 32 * c + 4 * t,
                                 w.seen(8 * j + g));
                    multiply_chunk(s[j], q, c, piece);
                }
        }
        Walk next = w;
        next.page += PAGES;
        next.find(table, kv_head, n_kv_heads);
        Walk then = next.done() ? after : next;
        if (EARLY) fetch_keys(k, planes, then);
        float x[4], best = -INFINITY;
#pragma unroll
        for (int j = 0; j < 4; j++) {  // keys 2t, 2t + 1, 2t + 8, 2t + 9
            x[j] = s[j / 2][j % 2] + s[j / 2][j % 2 + 2];
            if (SOFTCAP) x[j] = capped(x[j], cap);
            if (!w.seen(8 * (j / 2) + 2 * t + j % 2)) x[j] = -INFINITY;
            best = fmaxf(best, x[j]);
        }
        best = fmaxf(best, __shfl_xor_sync(FULL_MASK, best, 1));
        best = fmaxf(best, __shfl_xor_sync(FULL_MASK, best, 2));
        float now = fmaxf(top, best);  // finite: a warp walks over pages where it sees a key
        float decay = exp2_of(top - now);
        top = now;
        u32 p[4];
        float sum = 0.0f;
#pragma unroll
        for (int j = 0; j < 2; j++) {
            float a = exp2_of(x[2 * j] - now), b = exp2_of(x[2 * j + 1] - now);
            sum += a + b;
            p[2 * j] = pack_f16(a, b);
            p[2 * j + 1] = pack_f16(a - low_f32(p[2 * j]), b - high_f32(p[2 * j]));
        }
        total = total * decay + sum;
#pragma unroll
        for (int b = 0; b < BANDS; b++) {
            Raw late[4];
            if (!EARLY) fetch_band(late, b, planes, w);
#pragma unroll
            for (int i = 0; i < 8; i++)
#pragma unroll
                for (int c = 0; c < 4; c++) sums[b][i][c] *= decay;
            if (EARLY)
                multiply_band(sums[b], p, b, v.piece[b]);
            else
                multiply_band(sums[b], p, b, late);
        }
        if (EARLY) fetch_vals(v, planes, then);
        w = next;
    }
    total += __shfl_xor_sync(FULL_MASK, total, 1);
    total += __shfl_xor_sync(FULL_MASK, total, 2);
    if (t == 0) {
        shared.maxima[strand][g] = top;
        shared.totals[strand][g] = total;
    }
#pragma unroll
    for (int b = 0; b < BANDS; b++) {
        constexpr int PIECE = HD % 32 ? 2 : 4;  // neighbouring features that a lane holds
#pragma unroll
        for (int c = 0; c < 2; c++)
#pragma unroll
            for (int i = 0; i < 8; i += PIECE) {
                if (i >= band_values(b)) continue;
                float x[PIECE];
#pragma unroll
                for (int j = 0; j < PIECE; j++) x[j] = sums[b][i + j][c] + sums[b][i + j][c + 2];
                float* to =
                    &shared.sums[strand][g][band_start(b) + band_values(b) * (2 * t + c) + i];
                if constexpr (PIECE == 4)
                    *(float4*)to = make_float4(x[0], x[1], x[2], x[3]);
                else
                    *(float2*)to = make_float2(x[0], x[1]);
            }
    }
}

// Item number `number`; past the last, an item whose walk is done. Not inlined: its registers would
// come on top of those around it.
__device__ __noinline__ void find_item(Item& item, int number, const Shared& shared) {
    const Plan& plan = shared.plan;
    item.walk.page = item.walk.end_page = 0;
    if (number >= shared.first_item[plan.rows]) return;
    int low = 0, high = plan.rows;  // the last row whose first item is not past it
    while (high - low > 1) {
        int middle = (low + high) / 2;
        if (shared.first_item[middle] <= number)
            low = middle;
        else
            high = middle;
    }
    item.row = low;
    item.span = span_of(plan.positions[low], plan.window);
    int inner = number - shared.first_item[low];
    item.part = inner % item.span.parts;
    item.tile = inner / item.span.parts;
    item.kv_head = item.tile / HEAD_TILES;
    int first_head = item.tile % HEAD_TILES * TILE;
    item.heads = min(GROUP - first_head, TILE);
    item.at = ((low * plan.n_kv_heads + item.kv_head) * GROUP + first_head) * HD;
    item.walk = walk_part(item.span, item.part, threadIdx.x / WARP,
                          plan.seqs[low] * plan.max_pages);
    item.walk.find(plan.page_table, item.kv_head, plan.n_kv_heads);
}

DEVICE float4 scaled(float4 a, float f) { return make_float4(a.x * f, a.y * f, a.z * f, a.w * f); }
DEVICE void add_scaled(float4& sum, float4 a, float f) {
    sum.x += f * a.x, sum.y += f * a.y, sum.z += f * a.z, sum.w += f * a.w;
}

// Where the results of an item go, the first of which is value `first` of its row.
struct Result {
    float* y;
    int width, row, first;

    DEVICE void put(int four, float4 v) const {
        if (OUT_COLUMNS) {
            int pair = first / 2 + 2 * four;
            *half_pair(pair) = pack_act(v.x, v.y);
            *half_pair(pair + 1) = pack_act(v.z, v.w);
        } else {
            ((float4*)(y + row * width + first))[four] = v;
        }
    }

    DEVICE u32* half_pair(int pair) const {
        return (u32*)((u8*)y + pair_offset(row, OUT_COLUMNS, pair, OUT_ORDERED));
    }
};

// Add the strands' results, in order: to y if this is the only part, else to the part's record.
DEVICE void merge(const Shared& shared, int heads, bool only, const Result& y, float* record) {
    for (int e = threadIdx.x; e < heads * HD / 4; e += THREADS) {
        int h = e * 4 / HD, d = e * 4 % HD;
        float top = -INFINITY, total = 0.0f;
        float4 sum = make_float4(0, 0, 0, 0);
#pragma unroll
        for (int i = 0; i < STRANDS; i++) top = fmaxf(top, shared.maxima[i][h]);
#pragma unroll
        for (int i = 0; i < STRANDS; i++) {
            float weight = exp2_of(shared.maxima[i][h] - top);
            total += weight * shared.totals[i][h];
            add_scaled(sum, *(const float4*)&shared.sums[i][h][d], weight);
        }
        if (only) {
            y.put(e, scaled(sum, 1.0f / total));
        } else {
            __stcg((float4*)record + e, sum);
            if (d == 0) {
                __stcg(record + TILE * HD + h, top);
                __stcg(record + TILE * (HD + 1) + h, total);
            }
        }
    }
}

// Count a part in, by one thread, after a barrier behind the writes of its record. True for the
// last to arrive: then what every block wrote of the others is visible.
DEVICE bool arrive(u32* counter, int parts) {
    u32 arrived;
    asm volatile("atom.add.acq_rel.gpu.u32 %0, [%1], 1;" : "=r"(arrived) : "l"(counter) : "memory");
    if (arrived == parts - 1) *counter = 0;
    return arrived == parts - 1;
}

// Combine the records of all parts of a row and tile.
DEVICE void combine(Shared& shared, int heads, int parts, const float* records, const Result& y) {
    static_assert(SPLITS <= 2 * WARP, "a lane weighs two parts");
    int lane = threadIdx.x % WARP;
    for (int h = threadIdx.x / WARP; h < heads; h += WARPS) {
        float top[2], total[2], weight[2], sum = 0.0f;
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const float* r = records + (lane + i * WARP) * RECORD + TILE * HD + h;
            bool there = lane + i * WARP < parts;
            top[i] = there ? __ldcg(r) : -INFINITY;
            total[i] = there ? __ldcg(r + TILE) : 0.0f;
        }
        float best = warp_max(fmaxf(top[0], top[1]));
#pragma unroll
        for (int i = 0; i < 2; i++) {
            weight[i] = exp2_of(top[i] - best);
            sum += weight[i] * total[i];
            if (lane + i * WARP < SPLITS) shared.weights[h][lane + i * WARP] = weight[i];
        }
        sum = warp_sum(sum);
        if (lane == 0) shared.inverse[h] = 1.0f / sum;
    }
    __syncthreads();
    for (int e = threadIdx.x; e < heads * HD / 4; e += THREADS) {
        int h = e * 4 / HD;
        float4 out = make_float4(0, 0, 0, 0);
#pragma unroll 16
        for (int s = 0; s < parts; s++)
            add_scaled(out, __ldcg((const float4*)(records + s * RECORD) + e),
                       shared.weights[h][s]);
        y.put(e, scaled(out, shared.inverse[h]));
    }
}

KERNEL __launch_bounds__(THREADS, WALKS)
    attention_decode(const float* q, const u8* k_plane, const u8* v_plane, const f16* k_scales,
                     const f16* v_scales, const i32* positions, const i32* seqs,
                     const i32* page_table, float* y, float* parts, u32* counters, int rows,
                     int n_kv_heads, int max_pages, int window, int new_keys, float scale,
                     float cap) {
    extern __shared__ __align__(16) u8 memory[];
    Shared& shared = *(Shared*)memory;
    pdl_launch();
    Planes planes = {k_plane, v_plane, k_scales, v_scales};
    int thread = threadIdx.x, tiles = n_kv_heads * HEAD_TILES;
    int width = n_kv_heads * GROUP * HD;  // of a row
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
        if (thread == 0) {
            shared.first_item[rows] = before;
            shared.plan = {positions, seqs, page_table, rows, n_kv_heads, max_pages, window};
        }
    }
    __syncthreads();

    const int& items = shared.first_item[rows];
    int buffer = 0;
    float factor = SOFTCAP ? scale : scale * LOG2E;
    auto find = [&](int which, int number) {
        if (thread % WARP == 0) find_item(shared.items[which][thread / WARP], number, shared);
        __syncwarp();
    };
    find(0, blockIdx.x);
    const Item& begin = shared.items[0][thread / WARP];
    Keys keys;
    Vals vals;
    if (EARLY) {
        fetch_keys(keys, planes, begin.walk);
        fetch_vals(vals, planes, begin.walk);
    }
    pdl_wait();
    if (blockIdx.x < items) {
        if (EARLY && (begin.walk.page + 1) * PAGE > begin.span.end - new_keys) {
            fetch_keys(keys, planes, begin.walk);
            fetch_vals(vals, planes, begin.walk);
        }
        load_queries(shared.q[0], q + begin.at, begin.heads, factor);
    }
    // An item's part is counted in during the next item, so that no one waits for the answer.
    if (thread == 0) shared.places[1].parts = 0;
    for (int number = blockIdx.x; number < items + gridDim.x; number += gridDim.x, buffer ^= 1) {
        bool last = number >= items;  // nothing is left but the item before
        const Item& item = shared.items[buffer][thread / WARP];
        const Item& next = shared.items[buffer ^ 1][thread / WARP];
        auto prepare = [&] {
            find(buffer ^ 1, number + gridDim.x);
            if (number + gridDim.x < items)
                load_queries(shared.q[buffer ^ 1], q + next.at, next.heads, factor);
        };
        auto result = [&](int at) { return Result{y, width, at / width, at % width}; };
        auto records = [&](int slot) { return parts + (i64)slot * SPLITS * RECORD; };
        const Place &now = shared.places[buffer], &before = shared.places[buffer ^ 1];
        __syncthreads();
        bool arrived = false;
        if (thread == 0) {
            arrived = before.parts > 1 && arrive(counters + before.slot, before.parts);
            shared.places[buffer] = {item.row * tiles + item.tile, item.part, item.span.parts,
                                     item.heads, item.at};
            if (!EARLY) shared.last = arrived;  // it waits, for want of a register
        }
        if (!last) {
            if (EARLY) prepare();
            Walk walk = item.walk;
#pragma unroll 1
            for (int i = 0; i < WALKS; i++) {
                int strand = thread / WARP + i * WARPS;
                Walk after = next.walk;
                if (i + 1 < WALKS) {
                    after = walk_part(item.span, item.part, strand + WARPS, item.walk.pages);
                    after.find(page_table, item.kv_head, n_kv_heads);
                }
                attend(shared, strand, shared.q[buffer], walk, after, keys, vals, planes,
                       page_table, item.kv_head, n_kv_heads, cap);
                walk = after;
            }
        }
        if (EARLY && thread == 0) shared.last = arrived;
        __syncthreads();
        if (!last)
            merge(shared, now.heads, now.parts == 1, result(now.at),
                  records(now.slot) + now.part * RECORD);
        if (shared.last)
            combine(shared, before.heads, before.parts, records(before.slot), result(before.at));
        if (!EARLY && !last) prepare();
    }
    // a padded row reads nothing, but its output is defined
    for (int r = blockIdx.x; r < rows; r += gridDim.x)
        if (positions[r] < 0)
            for (int e = thread; e < width / 4; e += THREADS)
                Result{y, width, r, 0}.put(e, float4{});
}
