// Attention of rows that share their sequence with others of the step (prefill): everything but
// the arithmetic of its two products, which attention_prefill.cpp and attention_bf16.cpp give.
//
// A work item is (tile of consecutive rows of one sequence, kv head): its queries are all heads of
// the group for all rows of the tile. Keys are taken page by page from position 0 (or the page
// where the window begins), expanded once an item, with an online softmax per query. All
// arithmetic of a query is in an order fixed by its position, so its result does not depend on the
// tile, the chunk of the prompt or the lane it falls into.
//
// `Arithmetic` has
//   Element, Query              of expanded K and V; of q and of weights
//   open(kv, page, head, begin, end, k, v)   K and V of a page; V only of positions [begin, end)
//   query(x, head_dim, q)       a head of q, in its own form
//   scores<rows, wide>(...)     s[row][position], for `wide` registers of positions
//   weight(x, p)                store weights in the form that `values` reads; what it reads
//   values<rows, wide>(...)     acc[row] = acc[row] * factor[row] + sum of p v, for `wide`
//                               registers of features
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "hadamard.h"
#include "kernels.h"
#include "kv_load.h"
#include "simd.h"
#include "softmax.h"

namespace minfer::MINFER_ISA {

// kRows * kWide accumulators, kWide operands and a broadcast fit the registers.
constexpr int kRows = 6;
#if defined(MINFER_ISA_avx512) || defined(MINFER_ISA_neon)
constexpr int kWide = 4;
#else
constexpr int kWide = 2;
#endif
constexpr int kParts = kTile / kWidth;  // registers of a K tile
constexpr int64_t kQueries = 96;        // of an item, about: its state stays in the L2 cache

alignas(64) constexpr float kIndex[kPage] = {
    0,  1,  2,  3,  4,  5,  6,  7,  8,  9,  10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21,
    22, 23, 24, 25, 26, 27, 28, 29, 30, 31, 32, 33, 34, 35, 36, 37, 38, 39, 40, 41, 42, 43,
    44, 45, 46, 47, 48, 49, 50, 51, 52, 53, 54, 55, 56, 57, 58, 59, 60, 61, 62, 63};

// K and V of a page as an arithmetic reads them.
template <class Element>
struct Page {
    const Element* k;
    const Element* v;
};

template <class Arithmetic>
class Prefill {
public:
    // The work of one lane; `memory` holds what a lane needs.
    static void run(const AttentionArgs& a, uint8_t* memory, const Lane& lane) {
        Prefill self(a);
        self.lay_out(memory);
        const int64_t heads = a.kv.n_kv_heads, n_tiles = self.find_tiles(), items = n_tiles * heads;
        // From the last tile on: it sees the most keys, and short items at the end even out lanes.
        for (int64_t i; (i = a.queue->next(items, lane)) >= 0;) {
            const Tile& tile = self.tiles_[n_tiles - 1 - i / heads];
            if (self.valid(tile)) self.work(tile, i % heads);
        }
    }

    static size_t bytes(const AttentionArgs& a) { return Prefill(a).lay_out(nullptr); }

private:
    using Element = typename Arithmetic::Element;
    using Query = typename Arithmetic::Query;

    struct Tile {
        int32_t row;  // place of the first row
        int32_t n_rows;
    };

    explicit Prefill(const AttentionArgs& a)
        : a_(a), head_dim_(a.kv.head_dim), group_(a.n_heads / a.kv.n_kv_heads) {}

    // Rows of a tile: full ones fill the kernels' rows, whatever the group.
    int64_t tile_rows() const {
        const int64_t rows = kQueries / group_ / kRows * kRows;
        return rows < kRows ? kRows : rows;
    }

    size_t lay_out(uint8_t* memory) {
        const int64_t queries = tile_rows() * group_;
        int64_t used = 0;
        const auto take = [&](auto*& pointer, int64_t count) {
            pointer = reinterpret_cast<std::remove_reference_t<decltype(pointer)>>(memory + used);
            used += (count * int64_t(sizeof *pointer) + 63) / 64 * 64;
        };
        take(tiles_, a_.rows.places - a_.rows.single_places);
        take(k_, kPage * head_dim_);
        take(v_, kPage * head_dim_);
        take(q_, queries * head_dim_);
        take(acc_, queries * head_dim_);
        take(maximum_, queries);
        take(sums_, queries * kWidth);
        take(position_, queries);
        take(scores_, kRows * kPage);
        take(weights_, kRows * kPage);
        return size_t(used);
    }

    // Cut the rows into tiles of one sequence each.
    int64_t find_tiles() {
        const RealRows rows = a_.rows.real();
        const int64_t most = tile_rows(), end = rows.single_places + rows.others;
        int64_t n = 0;
        for (int64_t row = rows.single_places; row < end;) {
            int64_t next = row + 1;
            while (next < end && next - row < most && a_.seqs[next] == a_.seqs[row]) ++next;
            tiles_[n++] = {int32_t(row), int32_t(next - row)};
            row = next;
        }
        return n;
    }

    bool valid(const Tile& tile) const {
        bool good = a_.fault->check("attention: sequence slot", a_.seqs[tile.row], a_.n_slots);
        for (int64_t row = tile.row; good && row < tile.row + tile.n_rows; ++row) {
            good = a_.fault->check("attention: position", a_.positions[row], a_.max_pages * kPage);
        }
        return good;
    }

    int64_t first_key(int64_t position) const {
        return a_.window > 0 && position >= a_.window ? position - a_.window + 1 : 0;
    }

    void work(const Tile& tile, int64_t kv_head) {
        const int64_t queries = tile.n_rows * group_;
        const float factor = query_factor(a_.scale, a_.softcap);
        int64_t low = INT64_MAX, high = 0;
        for (int64_t i = 0; i < queries; ++i) {
            const int64_t row = tile.row + i / group_, head = kv_head * group_ + i % group_;
            const float* source = a_.q + (row * a_.n_heads + head) * head_dim_;
            float q[kMaxHeadDim];
            for (int64_t d = 0; d < head_dim_; ++d) q[d] = source[d] * factor;
            if (a_.kv.type == KVType::q8_0) rotate_blocks(q, head_dim_);
            Arithmetic::query(q, head_dim_, q_ + i * head_dim_);
            position_[i] = a_.positions[row];
            maximum_[i] = kMasked;
            store(sums_ + i * kWidth, set1(0.0f));
            const int64_t first = first_key(position_[i]);
            low = first < low ? first : low;
            high = position_[i] > high ? position_[i] : high;
        }
        std::memset(acc_, 0, size_t(queries * head_dim_) * sizeof(float));

        const int32_t* table = a_.page_table + a_.seqs[tile.row] * a_.max_pages;
        for (int64_t page = low / kPage; page <= high / kPage; ++page) {
            if (!a_.fault->check("attention: page", table[page], a_.kv.n_pages)) return;
            const int64_t start = page * kPage;
            const int64_t begin = low > start ? low - start : 0;
            const int64_t end = high + 1 - start < kPage ? high + 1 - start : kPage;
            const Page<Element> opened =
                Arithmetic::open(a_.kv, table[page], kv_head, begin, end, k_, v_);
            int64_t first = 0;
            for (; first + kRows <= queries; first += kRows) page_rows<kRows>(first, start, opened);
            for (; first + 2 <= queries; first += 2) page_rows<2>(first, start, opened);
            if (first < queries) page_rows<1>(first, start, opened);
        }

        for (int64_t i = 0; i < queries; ++i) {
            const int64_t row = tile.row + i / group_, head = kv_head * group_ + i % group_;
            float* y = a_.y + (row * a_.n_heads + head) * head_dim_;
            const vf inverse = set1(1.0f / sum(load(sums_ + i * kWidth)));
            for (int64_t d = 0; d < head_dim_; d += kWidth) {
                store(y + d, load(acc_ + i * head_dim_ + d) * inverse);
            }
        }
    }

    // One page, whose first position is `start`, for queries [first, first + rows).
    template <int rows>
    void page_rows(int64_t first, int64_t start, const Page<Element>& page) {
        // Positions of the page that some query sees; those no query sees may hold anything.
        int64_t begin = kPage, end = 0;
        for (int r = 0; r < rows; ++r) {
            const int64_t p = position_[first + r];
            const int64_t low = first_key(p) - start, high = p + 1 - start;
            begin = low < begin ? low : begin;
            end = high > end ? high : end;
        }
        begin = begin < 0 ? 0 : begin;
        end = end > kPage ? kPage : end;
        if (begin >= end) return;

        const Query* q = q_ + first * head_dim_;
        constexpr int kSpan = kWide * kWidth;
        for (int at = int(begin / kSpan * kSpan); at < end; at += kSpan) {
            if (kWide > 2 && end - at <= kSpan / 2) {
                Arithmetic::template scores<rows, kWide / 2>(q, page.k, head_dim_, at, scores_);
            } else {
                Arithmetic::template scores<rows, kWide>(q, page.k, head_dim_, at, scores_);
            }
        }

        constexpr int kPadded = (rows + kWidth - 1) / kWidth * kWidth;
        float next[kPadded] = {}, factor[kPadded];
        for (int r = 0; r < rows; ++r) {
            const int64_t p = position_[first + r];
            next[r] = find_maximum(scores_ + r * kPage, first_key(p) - start, p + 1 - start,
                                   maximum_[first + r]);
        }
        weigh<rows>(first, next, factor);

        float* acc = acc_ + first * head_dim_;
        int64_t d = 0;
        for (; d + kSpan <= head_dim_; d += kSpan) {
            Arithmetic::template values<rows, kWide>(weights_, page.v, d, begin, end, head_dim_,
                                                     factor, acc);
        }
        for (; d < head_dim_; d += kWidth) {
            Arithmetic::template values<rows, 1>(weights_, page.v, d, begin, end, head_dim_, factor,
                                                 acc);
        }
    }

    // Cap the scores of one query, mask all but [low, high), and find the largest.
    MINFER_FN float find_maximum(float* s, int64_t low, int64_t high, float maximum) const {
        constexpr int n = kPage / kWidth;
        vf x[n];
        for (int i = 0; i < n; ++i) x[i] = load(s + i * kWidth);
        if (a_.softcap > 0) {
            for (vf& y : x) y = cap(y, a_.softcap);
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

    // Scores to weights; `factor` tells what the sums so far are worth under the new maximum.
    template <int rows>
    MINFER_FN void weigh(int64_t first, const float* next, float* factor) {
        float* maximum = maximum_ + first;
        for (int r = 0; r < rows; r += kWidth) {
            // A query that has seen no key yet has a maximum of minus infinity: any finite one
            // serves in its place.
            const vf now = load(next + r), low = set1(-3e38f);
            store(factor + r, exp2_(load_n(maximum + r, rows - r < kWidth ? rows - r : kWidth) -
                                    select(less(now, low), low, now)));
        }
        for (int r = 0; r < rows; ++r) {
            maximum[r] = next[r];
            const float* s = scores_ + r * kPage;
            float* sums = sums_ + (first + r) * kWidth;
            const vf shift = set1(next[r] < -3e38f ? -3e38f : next[r]);
            vf total = load(sums) * set1(factor[r]);
            for (int i = 0; i < kPage; i += kWidth) {
                const vf p = exp2_(load(s + i) - shift);
                total = total + Arithmetic::weight(p, weights_ + r * kPage + i);
            }
            store(sums, total);
        }
    }

    const AttentionArgs& a_;
    const int64_t head_dim_;
    const int64_t group_;  // queries of a row
    // A lane's memory: its list of tiles, and the state of the item it works on.
    Tile* tiles_;        // [other rows]
    Element* k_;         // a page
    Element* v_;
    Query* q_;           // [queries][head_dim]
    float* acc_;         // [queries][head_dim]
    float* maximum_;     // [queries]
    float* sums_;        // [queries][kWidth], to be added up at the end
    int64_t* position_;  // [queries]
    float* scores_;      // [kRows][64]
    Query* weights_;     // [kRows][64]
};

}  // namespace minfer::MINFER_ISA
