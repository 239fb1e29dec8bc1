// Attention of single rows (decode): y = softmax(scale * q.K) V over the row's sequence.
//
// Keys are split at multiples of kChunk positions, whatever the batch and the number of lanes. A
// work item is (row, kv head, chunk): the heads of the group share every load of K and V. It leaves
// (sum of p v, maximum, sum of p) for each head; after a barrier `attention_combine` joins a row's
// chunks in order. All arithmetic is f32.
//
//   K      a register holds one feature of kWidth positions: no horizontal sums
//   V      accumulators for kHeads heads x kWide registers of features, over the chunk's positions
//   memory caches hold nothing of K and V, since a whole model's weights have passed since the last
//          step: for every line read, one of the phase after is asked for (V while K is worked on,
//          the next item's K while V is), so that memory never waits for arithmetic
//   floor  the cache's bytes at memory speed; with 7 heads a group f16 is bound by FMA (56 for
//          each 256 bytes at head_dim 64)
#include <cstdint>

#include "hadamard.h"
#include "kernels.h"
#include "kv_load.h"
#include "simd.h"
#include "softmax.h"

namespace minfer::MINFER_ISA {
namespace {

// Heads worked on at a time, as registers allow: kTile / kWidth registers a head for scores.
#if defined(MINFER_ISA_avx512)
constexpr int kHeads = 8;
#else
constexpr int kHeads = 4;
#endif
constexpr int kParts = kTile / kWidth;  // registers of a tile
constexpr int64_t kPages = kChunk / kPage;

constexpr int kLine = 64;  // bytes of a cache line

// The keys of one work item.
struct Keys {
    int64_t kv_head;
    int64_t begin, end;     // positions, relative to the chunk
    int64_t pages[kPages];  // all valid, also past the end: those are asked for, not read
};

// One work item.
struct Item {
    int64_t row, chunk;
    Keys keys;
};

int64_t max_chunks(const AttentionArgs& a) { return (a.max_pages * kPage + kChunk - 1) / kChunk; }

// What a part leaves. Parts come first, so that short sequences touch little of the scratch.
float* partial(const AttentionArgs& a, int64_t row, int64_t head, int64_t chunk) {
    const int64_t index = (chunk * a.rows.single_places + row) * a.n_heads + head;
    return reinterpret_cast<float*>(a.scratch) + index * (a.kv.head_dim + 2);
}

int64_t first_key(const AttentionArgs& a, int64_t position) {
    return a.window > 0 && position >= a.window ? position - a.window + 1 : 0;
}

constexpr int bytes_of(KVType type) {
    return type == KVType::f32 ? 4 : type == KVType::f16 ? 2 : 1;
}

// s[head][position in chunk] for the chunk's tiles [tile, tile + tiles); q is [heads][head_dim].
// `ahead` is the V of the same positions.
template <KVType type, int heads, int tiles>
MINFER_FN void scores(const uint8_t* k, int64_t tile, const float* q, int64_t head_dim,
                      const uint8_t* ahead, float* s) {
    KTile<type> keys[tiles];
    for (int t = 0; t < tiles; ++t) keys[t] = KTile<type>::at(k, head_dim, tile + t);
    vf acc[heads][tiles * kParts];
    for (int h = 0; h < heads; ++h) {
        for (int i = 0; i < tiles * kParts; ++i) acc[h][i] = set1(0.0f);
    }
    for (int64_t block = 0; block * kQuant < head_dim; ++block) {
        const int64_t end = head_dim < (block + 1) * kQuant ? head_dim : (block + 1) * kQuant;
        vf scale[tiles * kParts];
        for (int i = 0; i < tiles * kParts; ++i) {
            scale[i] = keys[i / kParts].scale(block, i % kParts * kWidth);
        }
        for (int64_t d = block * kQuant; d < end; ++d) {
            for (int line = 0; line < tiles * kTile * bytes_of(type); line += kLine) {
                __builtin_prefetch(ahead + d * tiles * kTile * bytes_of(type) + line);
            }
            vf key[tiles * kParts];
            for (int i = 0; i < tiles * kParts; ++i) {
                key[i] = keys[i / kParts].feature(d, i % kParts * kWidth, scale[i]);
            }
            for (int h = 0; h < heads; ++h) {
                const vf feature = set1(q[h * head_dim + d]);
                for (int i = 0; i < tiles * kParts; ++i) {
                    acc[h][i] = fma(feature, key[i], acc[h][i]);
                }
            }
        }
    }
    for (int h = 0; h < heads; ++h) {
        for (int i = 0; i < tiles * kParts; ++i) store(s + h * kChunk + i * kWidth, acc[h][i]);
    }
}

// acc[head][features d .. d + wide registers) = sum over the chunk's keys of p v. `ahead` are the
// keys of the next item.
template <KVType type, int heads, int wide>
MINFER_FN void values(const KVState& kv, const Keys& keys, const float* p, int64_t d,
                      const Keys& ahead, float* out, int64_t out_stride) {
    vf acc[heads][wide];
    for (int h = 0; h < heads; ++h) {
        for (int i = 0; i < wide; ++i) acc[h][i] = set1(0.0f);
    }
    for (int64_t page = keys.begin / kPage; page * kPage < keys.end; ++page) {
        const auto v = VBlock<type>::at(kv.v(keys.pages[page], keys.kv_head), kv.head_dim);
        const int64_t start = page * kPage;
        const int64_t begin = keys.begin > start ? keys.begin - start : 0;
        const int64_t end = keys.end - start < kPage ? keys.end - start : kPage;
        const uint8_t* next = kv.k(ahead.pages[page], ahead.kv_head) + d * bytes_of(type);
        for (int64_t j = begin; j < end; ++j) {
            for (int line = 0; line < wide * kWidth * bytes_of(type); line += kLine) {
                __builtin_prefetch(next + j * kv.head_dim * bytes_of(type) + line);
            }
            vf value[wide];
            for (int i = 0; i < wide; ++i) value[i] = v.features(j, d + i * kWidth);
            for (int h = 0; h < heads; ++h) {
                const vf weight = set1(p[h * kChunk + start + j]);
                for (int i = 0; i < wide; ++i) acc[h][i] = fma(weight, value[i], acc[h][i]);
            }
        }
    }
    for (int h = 0; h < heads; ++h) {
        for (int i = 0; i < wide; ++i) store(out + h * out_stride + d + i * kWidth, acc[h][i]);
    }
}

// Scores of one head to weights, in place; returns their maximum and sum.
struct Softmax {
    float maximum, sum;
};
MINFER_FN Softmax softmax(float* s, int64_t begin, int64_t end, float softcap) {
    // Whole tiles are worked on; what lies outside of [begin, end) may be anything, even NaN.
    const int64_t first = begin / kTile * kTile, last = (end + kTile - 1) / kTile * kTile;
    if (softcap > 0) {
        for (int64_t i = first; i < last; i += kWidth) store(s + i, cap(load(s + i), softcap));
    }
    for (int64_t i = first; i < begin; ++i) s[i] = kMasked;
    for (int64_t i = end; i < last; ++i) s[i] = kMasked;
    vf top = load(s + first);
    for (int64_t i = first + kWidth; i < last; i += kWidth) top = max(top, load(s + i));
    const float maximum = hmax(top);
    const vf shift = set1(maximum);
    vf total = set1(0.0f);
    for (int64_t i = first; i < last; i += kWidth) {
        const vf p = exp2_(load(s + i) - shift);
        store(s + i, p);
        total = total + p;
    }
    return {maximum, sum(total)};
}

// One item for `heads` heads from `head` on; `ahead` are the keys of the next item.
template <KVType type, int heads>
void work(const AttentionArgs& a, const Item& item, const Keys& ahead, int64_t head) {
    const Keys& keys = item.keys;
    const int64_t head_dim = a.kv.head_dim;
    alignas(64) float q[heads * kMaxHeadDim];
    alignas(64) float s[heads * kChunk];
    const float* source = a.q + (item.row * a.n_heads + head) * head_dim;
    const float factor = query_factor(a.scale, a.softcap);
    for (int64_t i = 0; i < heads * head_dim; ++i) q[i] = source[i] * factor;
    if (type == KVType::q8_0) {
        for (int h = 0; h < heads; ++h) rotate_blocks(q + h * head_dim, head_dim);
    }

    // Tiles are taken together where few heads leave accumulators unused.
    constexpr int kTogether = heads * kParts > 4 ? 1 : heads <= 2 && kParts == 1 ? 4 : 2;
    const int64_t tile_bytes = a.kv.block_bytes() / (kPage / kTile);
    const int64_t last = (keys.end + kTile - 1) / kTile;
    for (int64_t t = keys.begin / kTile; t < last;) {
        const int64_t in_page = t % (kPage / kTile);
        const uint8_t* k = a.kv.k(keys.pages[t * kTile / kPage], keys.kv_head);
        const uint8_t* v = k + a.kv.block_bytes() + in_page * tile_bytes;
        if (in_page % kTogether == 0 && t + kTogether <= last) {
            scores<type, heads, kTogether>(k, in_page, q, head_dim, v, s + t * kTile);
            t += kTogether;
        } else {
            scores<type, heads, 1>(k, in_page, q, head_dim, v, s + t * kTile);
            t += 1;
        }
    }

    float* out = partial(a, item.row, head, item.chunk);
    const int64_t out_stride = head_dim + 2;
    for (int h = 0; h < heads; ++h) {
        const Softmax r = softmax(s + h * kChunk, keys.begin, keys.end, a.softcap);
        out[h * out_stride + head_dim] = r.maximum;
        out[h * out_stride + head_dim + 1] = r.sum;
    }

#if defined(MINFER_ISA_avx512)
    constexpr int kWide = heads <= 6 ? 4 : 2;
#else
    constexpr int kWide = heads <= 2 ? 4 : 2;
#endif
    int64_t d = 0;
    for (; d + kWide * kWidth <= head_dim; d += kWide * kWidth) {
        values<type, heads, kWide>(a.kv, keys, s, d, ahead, out, out_stride);
    }
    for (; d < head_dim; d += kWidth) {
        values<type, heads, 1>(a.kv, keys, s, d, ahead, out, out_stride);
    }
}

template <KVType type>
void work_group(const AttentionArgs& a, const Item& item, const Keys& ahead) {
    const int64_t group = a.n_heads / a.kv.n_kv_heads;
    const int64_t end = (item.keys.kv_head + 1) * group;
    for (int64_t head = end - group; head < end;) {
        const int64_t left = end - head;
        const int heads = int(left < kHeads ? left : kHeads);
        switch (heads) {
            case 1: work<type, 1>(a, item, ahead, head); break;
            case 2: work<type, 2>(a, item, ahead, head); break;
            case 3: work<type, 3>(a, item, ahead, head); break;
            case 4: work<type, 4>(a, item, ahead, head); break;
#if defined(MINFER_ISA_avx512)
            case 5: work<type, 5>(a, item, ahead, head); break;
            case 6: work<type, 6>(a, item, ahead, head); break;
            case 7: work<type, 7>(a, item, ahead, head); break;
            default: work<type, 8>(a, item, ahead, head); break;
#endif
        }
        head += heads;
    }
}

// The items of a step, in an order that every lane agrees on: rows, then chunks, then kv heads.
class Items {
public:
    Items(const AttentionArgs& a, const Lane& lane) : a_(a), lane_(lane) {
        rows_ = a.rows.real().singles;
        for (int64_t row = 0; row < rows_; ++row) total_ += count(row);
    }

    // This lane's next item, if there is one.
    bool next(Item& item) {
        const int64_t i = a_.queue->next(total_, lane_);
        if (i < 0) return false;
        while (i >= end_) {
            begin_ = end_;
            end_ += count(++row_);
        }
        const int64_t position = a_.positions[row_], first = first_key(a_, position);
        item.row = row_;
        item.chunk = first / kChunk + (i - begin_) / a_.kv.n_kv_heads;
        const int64_t start = item.chunk * kChunk;
        Keys& keys = item.keys;
        keys.kv_head = (i - begin_) % a_.kv.n_kv_heads;
        keys.begin = first > start ? first - start : 0;
        keys.end = position + 1 - start < kChunk ? position + 1 - start : kChunk;
        const int32_t* table = a_.page_table + a_.seqs[row_] * a_.max_pages + start / kPage;
        for (int64_t page = 0; page < kPages; ++page) {
            const bool used = page >= keys.begin / kPage && page * kPage < keys.end;
            const bool valid =
                used && a_.fault->check("attention: page", table[page], a_.kv.n_pages);
            keys.pages[page] = valid ? table[page] : 0;
        }
        return true;
    }

private:
    int64_t count(int64_t row) const {
        if (!a_.fault->check("attention: sequence slot", a_.seqs[row], a_.n_slots) ||
            !a_.fault->check("attention: position", a_.positions[row], a_.max_pages * kPage)) {
            return 0;
        }
        const int64_t position = a_.positions[row];
        const int64_t chunks = position / kChunk - first_key(a_, position) / kChunk + 1;
        return chunks * a_.kv.n_kv_heads;
    }

    const AttentionArgs& a_;
    const Lane& lane_;
    int64_t rows_, total_ = 0;
    int64_t row_ = -1, begin_ = 0, end_ = 0;  // items of the current row
};

}  // namespace

size_t attention_single_scratch_bytes(const AttentionArgs& a) {
    return size_t(a.rows.single_places * a.n_heads * max_chunks(a) * (a.kv.head_dim + 2)) * 4;
}

void attention_single(const AttentionArgs& a, const Lane& lane) {
    Items items(a, lane);
    Item item, next;
    for (bool has = items.next(item); has; item = next) {
        has = items.next(next);
        const Keys& ahead = has ? next.keys : item.keys;
        switch (a.kv.type) {
            case KVType::f32: work_group<KVType::f32>(a, item, ahead); break;
            case KVType::f16: work_group<KVType::f16>(a, item, ahead); break;
            case KVType::q8_0: work_group<KVType::q8_0>(a, item, ahead); break;
        }
    }
}

void attention_combine(const AttentionArgs& a, const Lane& lane) {
    const int64_t head_dim = a.kv.head_dim;
    const Range share = lane.share(a.rows.real().singles * a.n_heads);
    for (int64_t i = share.begin; i < share.end; ++i) {
        const int64_t row = i / a.n_heads, head = i % a.n_heads;
        const int64_t position = a.positions[row];
        if (position < 0 || position >= a.max_pages * kPage) continue;  // noted already
        const int64_t begin = first_key(a, position) / kChunk, end = position / kChunk + 1;
        float maximum = kMasked;
        for (int64_t c = begin; c < end; ++c) {
            const float m = partial(a, row, head, c)[head_dim];
            maximum = m > maximum ? m : maximum;
        }
        float* y = a.y + i * head_dim;
        float total = 0;
        for (int64_t d = 0; d < head_dim; d += kWidth) store(y + d, set1(0.0f));
        for (int64_t c = begin; c < end; ++c) {
            const float* part = partial(a, row, head, c);
            const vf weight = exp2_(set1(part[head_dim] - maximum));
            alignas(64) float w[kWidth];
            store(w, weight);
            total += w[0] * part[head_dim + 1];
            for (int64_t d = 0; d < head_dim; d += kWidth) {
                store(y + d, fma(weight, load(part + d), load(y + d)));
            }
        }
        const vf inverse = set1(1.0f / total);
        for (int64_t d = 0; d < head_dim; d += kWidth) store(y + d, load(y + d) * inverse);
    }
}

}  // namespace minfer::MINFER_ISA
