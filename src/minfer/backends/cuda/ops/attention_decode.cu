// Attention of single rows over a long KV cache: the keys of a row are split over blocks, and the
// last block of a row combines the parts.
//
//   y[h] = sum_j p_j v_j,  p = softmax(scale * q[h] . k_j),  j <= position, j > position - window
//
// Shapes:  q, y f32 [rows][n_heads][HD], or y as the x of the one product that reads it: chunked
//          halves of OUT_COLUMNS rows, OUT_ORDERED or not (`matmul_batch.cu`); positions, seqs i32
//          [rows]; page_table i32 [slots][max_pages], key j of slot s in cell
//          page_table[s][j / 64] * 64 + j % 64; planes as kv.py. parts f32: per (row, kv head, head
//          tile, split) a record of 8 x (HD + 2) floats. counters u32, one a (row, kv head, head
//          tile), zero before and after. If PROJECTED, q is the product of the Q, K and V
//          projections, f32 [rows][n_heads + 2 kv heads][HD], with what `lib/projections.cuh` does
//          to it; else that is 0, and k and v are stored.
// Who:     a work item is (row, kv head, tile of up to 8 of its query heads, part). Parts are runs
//          of whole pairs of pages, their number fixed by the row's own length (at most SPLITS; one
//          of a short row, since adding parts takes longer than walking on). A part is walked in 8
//          strands, of 16 keys of every second page. So a row's result depends on neither its batch
//          mates nor on WARPS: blocks of 8 warps, a strand each, are soonest done with one item; of
//          many items, two blocks of 4 warps, two strands each, let one compute while the other
//          fetches. How many items there are is computed from `positions`, so the launch never
//          changes. Query heads are the rows of the tensor cores' tile: its rows 0-7 hold the upper
//          halves of q (or p), rows 8-15 the rest, so both products are exact to about 22 bits at
//          no cost. K and V go from memory to registers in 16-byte pieces; the sums over head
//          features and over keys are permuted so that no piece has to move.
// Overlap: positions, seqs, cells and the page table are inputs of the step, and only a row's last
//          `new_keys` keys may be stored in this step; so the first pieces are fetched before the
//          kernel before ends, and again if they are that new. What follows them is asked for as
//          far as the L2 cache. If PROJECTED, an item stores the keys and values of this step that
//          it reads; behind a barrier its row's own are taken from shared memory, those of the
//          sequence's other rows fetched again. Items that share them (rows of one sequence, tiles
//          of a group) store the same bytes, so it does not matter whose a read finds.
// Floor:   bytes of the keys and values once.
// Limits:  HD a multiple of 16 up to 256; any GROUP; at most 64 rows a launch. If PROJECTED, all
//          rows of the step are single ones of this launch.
// Numerics: scores, softmax and sums in f32. q8_0 values are rounded to halves after their scale;
//          f32 values enter as two halves. Masked keys count exactly 0 and are not read; a row
//          without keys gives 0. PROJECTED gives the bits of `qkv` and this kernel without it.
// Macros:  HD, GROUP (query heads a kv head), KV, SPLITS, SOFTCAP (0/1), WARPS (4 or 8),
//          OUT_COLUMNS (0 for f32), OUT_ORDERED (0/1), PROJECTED (0/1), and with it ROTATED, NEOX,
//          BIAS, NORM.
// Versions: 2026-11-30, 28 heads, 4 kv heads of 128, f16, one H200, us at depth 512 / 2048 / 8192,
//          and for 64 rows at 512:
//          K then V, parts of a page, combine over one value a thread: 9.8 / 18.9 / 24.2, 72
//          8 warps, K and V ahead, wide combine: 5.7 / 5.7 / 9.8, 65
//          items streamed, no bank conflicts, arrival deferred: 5.8 / 5.8 / 10.0, 47
//          4 warps, two blocks a multiprocessor: 7.6 / 7.9 / 12.3, 39; hence both, by rows
#if !PROJECTED  // q comes as it is to be used
#define ROTATED 2
#define NEOX 1
#define BIAS 0
#define NORM 0
#endif
#include "lib/held.cuh"
#include "lib/parts.cuh"
#include "lib/projections.cuh"

constexpr int MAX_ROWS = 64, WALKS = STRANDS / WARPS;  // a warp's
constexpr int HEAD_TILES = (GROUP + TILE - 1) / TILE;
constexpr bool EARLY = HD <= 128 && !PRECISE;  // registers hold keys and values on their way

// Where an item's results go: its row and tile, its part of how many, its heads, where in y.
struct Place {
    int slot, part, parts, heads, row, first;
};

struct Shared {
    uint4 q[2][CHUNKS][2][WARP];  // of two items: upper halves and rest, as the lanes' A fragments
    Sums sums;
    __align__(16) float heads[WARPS][HD];  // the one that a warp has in hand
    __align__(16) float own[2][2][EARLY ? HD : 4];  // of two items: a row's key and value, packed
    int positions[MAX_ROWS], seqs[MAX_ROWS], cells[MAX_ROWS], first_item[MAX_ROWS];
    int last, owned[2];  // whether `own` of an item was stored in this step
    Place places[2];  // of an item and of the one before
    Item items[2][WARPS];  // this and the next, as each warp sees them: registers are short
    int n_items;
};

// Lay a head, scaled, as row g of the A fragments, and what rounding leaves of it as row g + 8; or,
// without a head, zeros.
DEVICE void lay_query(uint4 (&to)[CHUNKS][2][WARP], int g, const float* head, float factor) {
    int c = threadIdx.x % WARP / 4, t = threadIdx.x % 4;
    if (c >= CHUNKS) return;
    u32 high[4] = {0, 0, 0, 0}, low[4] = {0, 0, 0, 0};
    if (head) {
        int n = 32 * c + 32 <= HD ? 8 : 4;
        const float2* p = (const float2*)(head + 32 * c + n * t);
#pragma unroll
        for (int k = 0; k < 4; k++) {
            if (k >= n / 2) continue;
            float x = __fmul_rn(p[k].x, factor), y = __fmul_rn(p[k].y, factor);
            high[k] = pack_f16(x, y);
            low[k] = pack_f16(x - low_f32(high[k]), y - high_f32(high[k]));
        }
    }
    to[c][0][4 * g + t] = make_uint4(high[0], high[1], high[2], high[3]);
    to[c][1][4 * g + t] = make_uint4(low[0], low[1], low[2], low[3]);
}

// Bring an item's queries into shared memory, a head a warp.
DEVICE void bring_queries(Shared& shared, int which, const Item& item, const Projections& q,
                          float factor, const Rotation<ROTATED>& rotation) {
    int warp = keep(threadIdx.x / WARP);
    float* mine = shared.heads[warp];
#pragma unroll 1
    for (int g = warp; g < item.heads; g += WARPS) {
        if (PROJECTED) {
            q.query(mine, item.row, item.head + g, rotation);
        } else {
            Head<HD> head;
            head.load(q.values + (i64)(item.row * q.n_heads + item.head + g) * HD);
            head.write(mine);
            __syncwarp();
        }
        lay_query(shared.q[which], g, mine, factor);
        __syncwarp();
    }
}

// The rows of this step whose keys an item reads, a bit each: its own, if its key is in this part,
// and others of the sequence.
DEVICE u64 find_new(const Shared& shared, const Plan& plan, Item& item) {
    int lane = keep(threadIdx.x % WARP);
    int from = max(item.span.first, item.first_key()), end = min(item.span.end, item.end_key());
    u64 found = 0;
#pragma unroll 1
    for (int base = 0; base < plan.rows; base += WARP) {
        int r = base + lane, position = -1;
        if (r < plan.rows && shared.seqs[r] == shared.seqs[item.row])
            position = shared.positions[r];
        bool read = position >= from && position < end;
        found |= (u64)__ballot_sync(FULL_MASK, read) << base;
    }
    int newest = 0x7fffffff;
    u64 others = EARLY ? found & ~(1ull << item.row) : found;
    for (; others; others &= others - 1)
        newest = min(newest, shared.positions[__ffsll(others) - 1]);
    item.newest = newest;
    return found;
}

// Store the keys and values of such rows, those that have a cell. Other items that read them store
// them, too, and the same bytes. The last warps begin, which have the fewest queries.
DEVICE void store_new(Shared& shared, int which, const Item& item, u64 found,
                      const Projections& kv, const Planes& planes, float magnitude,
                      Rotation<ROTATED>& rotation) {
    int warp = keep(threadIdx.x / WARP), turn = WARPS - 1;
#pragma unroll 1
    for (; found; found &= found - 1) {
        int row = __ffsll(found) - 1, cell = shared.cells[row];
        bool own = EARLY && row == item.row;
        if (turn == warp) {
            if (own && threadIdx.x % WARP == 0) shared.owned[which] = cell >= 0;
            if (cell >= 0) {
                rotation.find(shared.positions[row], magnitude);
                kv.store(own ? shared.own[which][0] : shared.heads[warp],
                         own ? shared.own[which][1] : shared.heads[warp], row, cell, item.kv_head,
                         rotation, planes);
            }
        }
        turn = turn ? turn - 1 : WARPS - 1;
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
    int lane = this_thread() % WARP, g = lane / 4, t = lane % 4;
    float sums[BANDS][8][4] = {};
    float top = -INFINITY, total = 0.0f;  // of head g; the total is this lane's share
    if (EARLY && w.done()) {  // a warp without keys here
        fetch_keys(k, planes, after);
        fetch_vals(v, planes, after);
    }
    while (!w.done()) {
        Walk next = w.beyond(table, kv_head, n_kv_heads);
        if (!EARLY) ask(planes, next);
        float s[2][4] = {};
        if (EARLY) {
#pragma unroll
            for (int j = 0; j < 2; j++)
#pragma unroll
                for (int c = 0; c < CHUNKS; c++) multiply_chunk(s[j], q, c, k.piece[j][c]);
        } else {
            KeySource keys(planes, w, g, t);
#pragma unroll 1
            for (int c = 0; c < CHUNKS; c += 2) {
                Raw piece[2][2];
#pragma unroll
                for (int i = 0; i < 4; i++)
                    if (c + i / 2 < CHUNKS)
                        keys.fetch(piece[i / 2][i % 2], i % 2, i / 2, c, w.seen(i % 2 * 8 + g));
#pragma unroll
                for (int i = 0; i < 4; i++)
                    if (c + i / 2 < CHUNKS)
                        multiply_chunk(s[i % 2], q, c + i / 2, piece[i / 2][i % 2]);
            }
        }
        Walk then = next.done() ? after : next;
        Vals coming = {};
        if (EARLY && then.done()) {
            k = {};  // else what is there would have to be kept
        } else if (EARLY) {
            fetch_keys(k, planes, then);
            fetch_vals(coming, planes, then);
            ask(planes, next.beyond(table, kv_head, n_kv_heads));
        }
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
        if (EARLY) v = coming;
        w = next;
    }
    total += __shfl_xor_sync(FULL_MASK, total, 1);
    total += __shfl_xor_sync(FULL_MASK, total, 2);
    if (t == 0) {
        shared.sums.maxima[strand][g] = top;
        shared.sums.totals[strand][g] = total;
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
                int d = band_start(b) + band_values(b) * (2 * t + c) + i;
                float* to = &shared.sums.values[strand][g][d];
                if constexpr (PIECE == 4)
                    *(float4*)to = make_float4(x[0], x[1], x[2], x[3]);
                else
                    *(float2*)to = make_float2(x[0], x[1]);
            }
    }
}

// Item number `number`, by a whole warp; where its first page is may be still on its way.
DEVICE Item find_item(int number, const Shared& shared, const Plan& plan) {
    int lane = threadIdx.x % WARP, row = -1;  // the last one whose first item is not past it
#pragma unroll 1
    for (int base = 0; base < plan.rows; base += WARP) {
        bool before = base + lane < plan.rows && shared.first_item[base + lane] <= number;
        row += __popc(__ballot_sync(FULL_MASK, before));
    }
    Item item;
    item.row = row;
    item.span = span_of(shared.positions[row], plan.window);
    item.part = 0, item.tile = number - shared.first_item[row];
    if (item.span.parts > 1) {
        item.part = item.tile % item.span.parts;
        item.tile /= item.span.parts;
    }
    item.kv_head = item.tile / HEAD_TILES;
    int of_group = item.tile % HEAD_TILES * TILE;
    item.heads = min(GROUP - of_group, TILE);
    item.head = item.kv_head * GROUP + of_group;
    item.newest = item.span.end - plan.new_keys;
    item.walk = walk_part(item.span, item.part, threadIdx.x / WARP,
                          shared.seqs[row] * plan.max_pages);
    item.walk.find(plan.page_table, item.kv_head, plan.n_kv_heads);
    return item;
}

KERNEL __launch_bounds__(THREADS, WALKS)
    attention_decode(const float* q, u8* k_plane, u8* v_plane, f16* k_scales, f16* v_scales,
                     const i32* positions, const i32* seqs, const i32* page_table, float* y,
                     float* parts, u32* counters, int rows, int n_kv_heads, int max_pages,
                     int window, int new_keys, float scale, float cap, const float* q_bias,
                     const float* k_bias, const float* v_bias, const float* q_norm,
                     const float* k_norm, const i32* cells, const float2* turns, float magnitude,
                     float eps) {
    extern __shared__ __align__(16) u8 memory[];
    Shared& shared = *(Shared*)memory;
    pdl_launch();
    Planes planes = {k_plane, v_plane, k_scales, v_scales};
    Projections projections = {q,      q_bias,             k_bias,     v_bias, q_norm,
                               k_norm, n_kv_heads * GROUP, n_kv_heads, eps};
    Rotation<ROTATED> first;
    if (PROJECTED) first.load(turns);
    int thread = threadIdx.x, tiles = n_kv_heads * HEAD_TILES;
    int width = n_kv_heads * GROUP * HD;  // of a row
    Plan plan = {page_table, rows, n_kv_heads, max_pages, window, new_keys};
    // items before each row, by one warp
    if (thread < WARP) {
        int before = 0;
#pragma unroll 1
        for (int base = 0; base < rows; base += WARP) {
            int r = base + thread, count = 0;
            if (r < rows) {
                int position = positions[r], seq = seqs[r];
                if (PROJECTED) shared.cells[r] = cells[r];
                shared.positions[r] = position, shared.seqs[r] = seq;
                count = span_of(position, window).parts * tiles;
            }
            int sum = count;
#pragma unroll 1
            for (int offset = 1; offset < min(rows, WARP); offset *= 2) {
                int other = __shfl_up_sync(FULL_MASK, sum, offset);
                if (thread >= offset) sum += other;
            }
            if (r < rows) shared.first_item[r] = before + sum - count;
            before += __shfl_sync(FULL_MASK, sum, min(rows - base, WARP) - 1);
        }
        if (thread == 0) shared.n_items = before;
    }
    __syncthreads();

    // a padded row reads nothing, but its output is defined
    auto clear_padded = [&] {
        for (int r = blockIdx.x; r < rows; r += gridDim.x)
            if (shared.positions[r] < 0)
#pragma unroll 1
                for (int e = thread; e < width / 4; e += THREADS)
                    Result{y, width, r, 0}.put(e, float4{});
    };
    const int& items = shared.n_items;
    if (blockIdx.x >= items) {
        pdl_wait();
        clear_padded();
        return;
    }
    int buffer = 0;
    float factor = SOFTCAP ? scale : scale * LOG2E;
    int warp = thread / WARP;
    // leave an item where all that follows reads it, and zeros for the heads that it lacks
    auto settle = [&](int which, const Item& item) {
#pragma unroll
        for (int i = 0; i < TILE / WARPS; i++)
            if (warp + i * WARPS >= item.heads)
                lay_query(shared.q[which], warp + i * WARPS, nullptr, 0.0f);
        if (thread % WARP == 0) shared.items[which][warp] = item;
        __syncwarp();
        if (!EARLY) ask(planes, item.walk);
    };
    // an item's queries and, of what follows the projections, all that it reads
    auto bring = [&](int which, const Item& item, u64 found, Rotation<ROTATED>& rotation) {
        bring_queries(shared, which, item, projections, factor, rotation);
        if (PROJECTED)
            store_new(shared, which, item, found, projections, planes, magnitude, rotation);
    };
    Keys keys;
    Vals vals;
    auto fetch_first = [&](const Item& item) {
        fetch_keys(keys, planes, item.walk);
        fetch_vals(vals, planes, item.walk);
    };
    Item begin = find_item(blockIdx.x, shared, plan);
    Walk second = {};
    if (EARLY) second = begin.walk.beyond(page_table, begin.kv_head, n_kv_heads);
    u64 found = 0;
    if (PROJECTED) {  // while the page table answers
        found = find_new(shared, plan, begin);
        first.find(begin.span.end - 1, magnitude);
    }
    if (EARLY) {
        fetch_first(begin);
        ask(planes, second);
    }
    settle(0, begin);
    pdl_wait();
    if (EARLY && !PROJECTED && begin.ends_new()) fetch_first(begin);
    bring(0, begin, found, first);
    // An item's part is counted in during the next item, so that no one waits for the answer.
    if (thread == 0) shared.places[1].parts = 0;
    for (int number = blockIdx.x;; number += n_blocks(), buffer ^= 1) {
        bool last = number >= items;  // nothing is left but the item before
        bool more = number + gridDim.x < items;
        const Item& item = shared.items[buffer][warp];
        Item& next = shared.items[buffer ^ 1][warp];
        auto prepare = [&] {
            Item coming = find_item(number + gridDim.x, shared, plan);
            u64 others = 0;
            Rotation<ROTATED> rotation;
            if (PROJECTED) {
                rotation.load(turns);
                others = find_new(shared, plan, coming);
                rotation.find(coming.span.end - 1, magnitude);
            }
            bring(buffer ^ 1, coming, others, rotation);
            settle(buffer ^ 1, coming);
        };
        auto result = [&](const Place& at) { return Result{y, width, at.row, at.first}; };
        auto records = [&](int slot) { return parts + (i64)slot * SPLITS * RECORD; };
        int at = anew(buffer);
        const Place &now = shared.places[at], &before = shared.places[at ^ 1];
        __syncthreads();
        bool arrived = false;
        if (thread == 0) {
            arrived = before.parts > 1 && arrive(counters + before.slot, before.parts);
            // (in the last round of an item that is not there, and nobody reads it)
            shared.places[anew(buffer)] = {item.row * tiles + item.tile, item.part,
                                           item.span.parts, item.heads, item.row,
                                           item.head * HD};
            if (!EARLY) shared.last = arrived;  // it waits, for want of a register
        }
        if (!last) {
            if (EARLY && PROJECTED) {
                if (item.ends_new()) fetch_first(item);
                if (shared.owned[buffer])  // of another part it says nothing: there it is not taken
                    take_own(keys, vals, shared.own[buffer][0], shared.own[buffer][1], item.walk,
                             item.span.end - 1);
            }
            if (EARLY && more) {
                prepare();
            } else if (EARLY) {
                if (thread % WARP == 0) next.walk.page = next.walk.end_page = 0;
                __syncwarp();
            }
            Walk walk = item.walk;
#pragma unroll 1
            for (int i = 0; i < WALKS; i++) {
                int strand = warp + i * WARPS;
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
            merge(shared.sums, now.heads, now.parts == 1, result(now),
                  records(now.slot) + now.part * RECORD);
        if (shared.last)
            combine(shared.sums, before.heads, before.parts, records(before.slot),
                    result(before));
        if (!EARLY && more) prepare();
        if (!more && (last || now.parts == 1)) break;
    }
    clear_padded();
}
