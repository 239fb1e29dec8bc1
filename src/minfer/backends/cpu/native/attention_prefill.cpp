// Attention of rows that share their sequence with others of the step (prefill).
//
// A work item is (tile of consecutive rows of one sequence, kv head): its queries are all heads of
// the group for all rows of the tile. Keys are taken page by page from position 0 (or the page
// where the window begins), expanded to f32 once an item, with an online softmax per query. All
// arithmetic of a query is in an order fixed by its position, so its result does not depend on the
// tile, the chunk of the prompt or the lane it falls into. All arithmetic is f32.
//
//   scores  kRows queries x kKeys registers of positions, over features
//   values  kRows queries x kKeys registers of features, over the positions of a page
//   floor   2 * keys * head_dim multiply-adds a query at f32 FMA speed
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "hadamard.h"
#include "kernels.h"
#include "kv_load.h"
#include "simd.h"
#include "softmax.h"

namespace minfer::MINFER_ISA {
namespace {

// kRows * kKeys accumulators, kKeys operands and a broadcast fit the registers.
constexpr int kRows = 6;
#if defined(MINFER_ISA_avx512) || defined(MINFER_ISA_neon)
constexpr int kKeys = 4;
#else
constexpr int kKeys = 2;
#endif
constexpr int kParts = kTile / kWidth;  // registers of a K tile
constexpr int64_t kQueries = 96;        // of an item, about: its state stays in the L2 cache

struct Tile {
    int32_t row;    // place of the first row
    int32_t n_rows;
};

// Rows of a tile: full ones fill the kernels' rows, whatever the group.
int64_t tile_rows(const AttentionArgs& a) {
    const int64_t rows = kQueries * a.kv.n_kv_heads / a.n_heads / kRows * kRows;
    return rows < kRows ? kRows : rows;
}

int64_t round_up(int64_t n, int64_t unit) { return (n + unit - 1) / unit * unit; }

// A lane's memory: its list of tiles, and the state of the item it works on.
struct Memory {
    Tile* tiles;       // [other rows]
    float* k;          // [4][head_dim][16]
    float* v;          // [64][head_dim]
    float* q;          // [queries][head_dim], scaled
    float* acc;        // [queries][head_dim]
    float* maximum;    // [queries]
    float* sum;        // [queries][kWidth], to be added up at the end
    int64_t* position;  // [queries]
    float* scores;     // [kRows][64]

    size_t layout(const AttentionArgs& a, uint8_t* base) {
        const int64_t queries = tile_rows(a) * (a.n_heads / a.kv.n_kv_heads);
        const int64_t head_dim = a.kv.head_dim;
        int64_t used = 0;
        const auto take = [&](auto*& pointer, int64_t count) {
            pointer = reinterpret_cast<std::remove_reference_t<decltype(pointer)>>(base + used);
            used += round_up(count * int64_t(sizeof *pointer), 64);
        };
        take(tiles, a.rows.places - a.rows.single_places);
        take(k, kPage * head_dim);
        take(v, kPage * head_dim);
        take(q, queries * head_dim);
        take(acc, queries * head_dim);
        take(maximum, queries);
        take(sum, queries * kWidth);
        take(position, queries);
        take(scores, kRows * kPage);
        return size_t(used);
    }
};

int64_t first_key(const AttentionArgs& a, int64_t position) {
    return a.window > 0 && position >= a.window ? position - a.window + 1 : 0;
}

// Cut the rows into tiles of one sequence each.
int64_t find_tiles(const AttentionArgs& a, const RealRows& rows, Tile* tiles) {
    const int64_t most = tile_rows(a), end = rows.single_places + rows.others;
    int64_t n = 0;
    for (int64_t row = rows.single_places; row < end;) {
        int64_t next = row + 1;
        while (next < end && next - row < most && a.seqs[next] == a.seqs[row]) ++next;
        tiles[n++] = {int32_t(row), int32_t(next - row)};
        row = next;
    }
    return n;
}

template <KVType type>
void expand_k(const uint8_t* k, int64_t head_dim, float* out) {
    for (int64_t t = 0; t < kPage / kTile; ++t) {
        const auto tile = KTile<type>::at(k, head_dim, t);
        for (int at = 0; at < kTile; at += kWidth) {
            for (int64_t d = 0; d < head_dim; ++d) {
                store(out + (t * head_dim + d) * kTile + at,
                      tile.feature(d, at, tile.scale(d / kQuant, at)));
            }
        }
    }
}

template <KVType type>
void expand_v(const uint8_t* v, int64_t head_dim, int64_t begin, int64_t end, float* out) {
    const auto block = VBlock<type>::at(v, head_dim);
    for (int64_t j = begin; j < end; ++j) {
        for (int64_t d = 0; d < head_dim; d += kWidth) {
            store(out + j * head_dim + d, block.features(j, d));
        }
    }
}

// K and V of a page as f32; `begin` and `end` bound the positions of V that are read.
struct Page {
    const float* k;
    const float* v;
};
Page open_page(const AttentionArgs& a, int64_t page, int64_t head, int64_t begin, int64_t end,
               const Memory& m) {
    const uint8_t *k = a.kv.k(page, head), *v = a.kv.v(page, head);
    switch (a.kv.type) {
        case KVType::f32:
            return {reinterpret_cast<const float*>(k), reinterpret_cast<const float*>(v)};
        case KVType::f16:
            expand_k<KVType::f16>(k, a.kv.head_dim, m.k);
            expand_v<KVType::f16>(v, a.kv.head_dim, begin, end, m.v);
            break;
        case KVType::q8_0:
            expand_k<KVType::q8_0>(k, a.kv.head_dim, m.k);
            expand_v<KVType::q8_0>(v, a.kv.head_dim, begin, end, m.v);
            break;
    }
    return {m.k, m.v};
}

// s[row][position] of `rows` queries, for `wide` registers of positions from `at` on.
template <int rows, int wide>
MINFER_FN void page_scores(const float* q, const float* k, int64_t head_dim, int at, float* s) {
    const float* key[wide];
    for (int i = 0; i < wide; ++i) {
        const int part = at / kWidth + i;
        key[i] = k + part / kParts * head_dim * kTile + part % kParts * kWidth;
    }
    vf acc[rows][wide];
    for (int r = 0; r < rows; ++r) {
        for (int i = 0; i < wide; ++i) acc[r][i] = set1(0.0f);
    }
    for (int64_t d = 0; d < head_dim; ++d) {
        vf feature[wide];
        for (int i = 0; i < wide; ++i) feature[i] = load(key[i] + d * kTile);
        for (int r = 0; r < rows; ++r) {
            const vf query = set1(q[r * head_dim + d]);
            for (int i = 0; i < wide; ++i) acc[r][i] = fma(query, feature[i], acc[r][i]);
        }
    }
    for (int r = 0; r < rows; ++r) {
        for (int i = 0; i < wide; ++i) store(s + r * kPage + at + i * kWidth, acc[r][i]);
    }
}

// acc[row] = acc[row] * factor[row] + sum of p v over positions [begin, end) of a page, for
// `wide` registers of features.
template <int rows, int wide>
MINFER_FN void page_values(const float* p, const float* v, int64_t begin, int64_t end,
                           int64_t head_dim, const float* factor, float* acc) {
    vf total[rows][wide];
    for (int r = 0; r < rows; ++r) {
        for (int i = 0; i < wide; ++i) {
            total[r][i] = load(acc + r * head_dim + i * kWidth) * set1(factor[r]);
        }
    }
    for (int64_t j = begin; j < end; ++j) {
        vf value[wide];
        for (int i = 0; i < wide; ++i) value[i] = load(v + j * head_dim + i * kWidth);
        for (int r = 0; r < rows; ++r) {
            const vf weight = set1(p[r * kPage + j]);
            for (int i = 0; i < wide; ++i) total[r][i] = fma(weight, value[i], total[r][i]);
        }
    }
    for (int r = 0; r < rows; ++r) {
        for (int i = 0; i < wide; ++i) store(acc + r * head_dim + i * kWidth, total[r][i]);
    }
}

alignas(64) constexpr float kIndex[kPage] = {
    0,  1,  2,  3,  4,  5,  6,  7,  8,  9,  10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21,
    22, 23, 24, 25, 26, 27, 28, 29, 30, 31, 32, 33, 34, 35, 36, 37, 38, 39, 40, 41, 42, 43,
    44, 45, 46, 47, 48, 49, 50, 51, 52, 53, 54, 55, 56, 57, 58, 59, 60, 61, 62, 63};

// Cap the scores of one query, mask all but [low, high), and find the largest, at least `maximum`.
MINFER_FN float page_maximum(float* s, float softcap, int64_t low, int64_t high, float maximum) {
    constexpr int n = kPage / kWidth;
    vf x[n];
    for (int i = 0; i < n; ++i) x[i] = load(s + i * kWidth);
    if (softcap > 0) {
        for (vf& y : x) y = cap(y, softcap);
    }
    if (low > 0 || high < kPage) {
        const vf first = set1(float(low)), end = set1(float(high)), masked = set1(kMasked);
        for (int i = 0; i < n; ++i) {
            const vf index = load(kIndex + i * kWidth);
            x[i] = select(less(index, end), select(less(index, first), masked, x[i]), masked);
        }
    }
    vf top = x[0];
    for (int i = 0; i < n; ++i) {
        store(s + i * kWidth, x[i]);
        top = max(top, x[i]);
    }
    const float largest = hmax(top);
    return largest > maximum ? largest : maximum;
}

// Scores of `rows` queries to weights, in place. `factor` tells what their sums so far are worth.
template <int rows>
MINFER_FN void page_weights(float* s, const float* next, float* maximum, float* sums,
                            float* factor) {
    for (int r = 0; r < rows; r += kWidth) {
        // A query that has seen no key yet has a maximum of minus infinity: any finite one serves.
        const vf now = load(next + r), low = set1(-3e38f);
        store(factor + r, exp2_(load_n(maximum + r, rows - r < kWidth ? rows - r : kWidth) -
                                select(less(now, low), low, now)));
    }
    for (int r = 0; r < rows; ++r) {
        maximum[r] = next[r];
        const vf shift = set1(next[r] < -3e38f ? -3e38f : next[r]);
        vf total = load(sums + r * kWidth) * set1(factor[r]);
        for (int i = 0; i < kPage / kWidth; ++i) {
            float* at = s + r * kPage + i * kWidth;
            const vf p = exp2_(load(at) - shift);
            store(at, p);
            total = total + p;
        }
        store(sums + r * kWidth, total);
    }
}

// One page for queries [first, first + rows) of the item.
template <int rows>
void page_rows(const AttentionArgs& a, const Memory& m, int64_t first, int64_t start,
               const Page& page) {
    const int64_t head_dim = a.kv.head_dim;
    // Positions of the page that some query sees; those no query sees may hold anything.
    int64_t begin = kPage, end = 0;
    for (int r = 0; r < rows; ++r) {
        const int64_t p = m.position[first + r];
        const int64_t low = first_key(a, p) - start, high = p + 1 - start;
        begin = low < begin ? low : begin;
        end = high > end ? high : end;
    }
    begin = begin < 0 ? 0 : begin;
    end = end > kPage ? kPage : end;
    if (begin >= end) return;

    const float* q = m.q + first * head_dim;
    constexpr int kSpan = kKeys * kWidth;
    for (int at = int(begin / kSpan * kSpan); at < end; at += kSpan) {
        if (kKeys > 2 && end - at <= kSpan / 2) {
            page_scores<rows, kKeys / 2>(q, page.k, head_dim, at, m.scores);
        } else {
            page_scores<rows, kKeys>(q, page.k, head_dim, at, m.scores);
        }
    }
    constexpr int kPadded = (rows + kWidth - 1) / kWidth * kWidth;
    float next[kPadded] = {}, factor[kPadded];
    for (int r = 0; r < rows; ++r) {
        const int64_t p = m.position[first + r];
        next[r] = page_maximum(m.scores + r * kPage, a.softcap, first_key(a, p) - start,
                               p + 1 - start, m.maximum[first + r]);
    }
    page_weights<rows>(m.scores, next, m.maximum + first, m.sum + first * kWidth, factor);
    float* acc = m.acc + first * head_dim;
    int64_t d = 0;
    for (; d + kKeys * kWidth <= head_dim; d += kKeys * kWidth) {
        page_values<rows, kKeys>(m.scores, page.v + d, begin, end, head_dim, factor, acc + d);
    }
    for (; d < head_dim; d += kWidth) {
        page_values<rows, 1>(m.scores, page.v + d, begin, end, head_dim, factor, acc + d);
    }
}

void page_queries(const AttentionArgs& a, const Memory& m, int64_t queries, int64_t start,
                  const Page& page) {
    int64_t first = 0;
    for (; first + kRows <= queries; first += kRows) page_rows<kRows>(a, m, first, start, page);
    for (; first + 2 <= queries; first += 2) page_rows<2>(a, m, first, start, page);
    if (first < queries) page_rows<1>(a, m, first, start, page);
}

bool valid_tile(const AttentionArgs& a, const Tile& tile) {
    if (!a.fault->check("attention: sequence slot", a.seqs[tile.row], a.n_slots)) return false;
    for (int64_t row = tile.row; row < tile.row + tile.n_rows; ++row) {
        if (!a.fault->check("attention: position", a.positions[row], a.max_pages * kPage)) {
            return false;
        }
    }
    return true;
}

void work(const AttentionArgs& a, const Tile& tile, int64_t kv_head, const Memory& m) {
    const int64_t head_dim = a.kv.head_dim, group = a.n_heads / a.kv.n_kv_heads;
    const int64_t queries = tile.n_rows * group;
    const float factor = query_factor(a.scale, a.softcap);
    int64_t low = INT64_MAX, high = 0;
    for (int64_t i = 0; i < queries; ++i) {
        const int64_t row = tile.row + i / group, head = kv_head * group + i % group;
        const float* source = a.q + (row * a.n_heads + head) * head_dim;
        float* q = m.q + i * head_dim;
        for (int64_t d = 0; d < head_dim; ++d) q[d] = source[d] * factor;
        if (a.kv.type == KVType::q8_0) rotate_blocks(q, head_dim);
        m.position[i] = a.positions[row];
        m.maximum[i] = kMasked;
        store(m.sum + i * kWidth, set1(0.0f));
        const int64_t first = first_key(a, m.position[i]);
        low = first < low ? first : low;
        high = m.position[i] > high ? m.position[i] : high;
    }
    std::memset(m.acc, 0, size_t(queries * head_dim) * sizeof(float));

    const int32_t* table = a.page_table + a.seqs[tile.row] * a.max_pages;
    for (int64_t page = low / kPage; page <= high / kPage; ++page) {
        if (!a.fault->check("attention: page", table[page], a.kv.n_pages)) return;
        const int64_t start = page * kPage;
        const int64_t begin = low > start ? low - start : 0;
        const int64_t end = high + 1 - start < kPage ? high + 1 - start : kPage;
        page_queries(a, m, queries, start, open_page(a, table[page], kv_head, begin, end, m));
    }

    for (int64_t i = 0; i < queries; ++i) {
        const int64_t row = tile.row + i / group, head = kv_head * group + i % group;
        float* y = a.y + (row * a.n_heads + head) * head_dim;
        const vf inverse = set1(1.0f / sum(load(m.sum + i * kWidth)));
        for (int64_t d = 0; d < head_dim; d += kWidth) {
            store(y + d, load(m.acc + i * head_dim + d) * inverse);
        }
    }
}

}  // namespace

size_t attention_other_scratch_bytes(const AttentionArgs& a, int lanes) {
    Memory m;
    return m.layout(a, nullptr) * size_t(lanes);
}

void attention_other(const AttentionArgs& a, const Lane& lane) {
    Memory m;
    const size_t mine = m.layout(a, nullptr) * size_t(lane.index);
    m.layout(a, a.scratch + mine);
    const int64_t n_tiles = find_tiles(a, a.rows.real(), m.tiles);
    const int64_t items = n_tiles * a.kv.n_kv_heads;
    // From the last tile on: it sees the most keys, and short items at the end even out the lanes.
    for (int64_t i; (i = a.queue->next(items, lane)) >= 0;) {
        const Tile& tile = m.tiles[n_tiles - 1 - i / a.kv.n_kv_heads];
        if (valid_tile(a, tile)) work(a, tile, i % a.kv.n_kv_heads, m);
    }
}

}  // namespace minfer::MINFER_ISA
