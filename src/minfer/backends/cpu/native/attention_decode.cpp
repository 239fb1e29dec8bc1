// Attention of single rows (decode): y = softmax(scale * q.K) V over the row's sequence.
//
// Keys are split at multiples of kChunk positions, whatever the batch and the number of lanes. A
// work item is (row, kv head, chunk): the heads of the group share every load of K and V. It leaves
// (sum of p v, maximum, sum of p) for each head; after a barrier `attention_combine` joins a row's
// chunks in order. All arithmetic is f32.
//
//   K      a register holds one feature of kWidth positions: no horizontal sums
//   V      accumulators for kHeads heads x kWide registers of features, over the chunk's positions
//   floor  the cache's bytes at memory speed; with 7 heads a group f16 is bound by FMA (56 for
//          each 256 bytes at head_dim 64)
#include <cstdint>

#include "hadamard.h"
#include "kernels.h"
#include "kv_load.h"
#include "simd.h"

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
constexpr int64_t kMaxHeadDim = 512;

// The keys of one work item.
struct Keys {
    int64_t begin, end;       // positions, relative to the chunk
    int64_t pages[kPages];
};

// One work item's place.
struct Item {
    int64_t row, kv_head, chunk;
    int64_t first, last;  // key positions the row sees
};

int64_t max_chunks(const AttentionArgs& a) { return (a.max_pages * kPage + kChunk - 1) / kChunk; }

float* partial(const AttentionArgs& a, int64_t row, int64_t head, int64_t chunk) {
    const int64_t index = (row * a.n_heads + head) * max_chunks(a) + chunk;
    return reinterpret_cast<float*>(a.scratch) + index * (a.kv.head_dim + 2);
}

int64_t first_key(const AttentionArgs& a, int64_t position) {
    return a.window > 0 && position >= a.window ? position - a.window + 1 : 0;
}

bool valid_row(const AttentionArgs& a, int64_t row) {
    return a.fault->check("attention: sequence slot", a.seqs[row], a.n_slots) &&
           a.fault->check("attention: position", a.positions[row], a.max_pages * kPage);
}

// s[head][position in chunk] for the chunk's tiles [tile, tile + tiles); q is [heads][head_dim].
template <KVType type, int heads, int tiles>
MINFER_FN void scores(const uint8_t* k, int64_t tile, const float* q, int64_t head_dim,
                          float* s) {
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

// acc[head][features d .. d + wide registers) = sum over the chunk's keys of p v
template <KVType type, int heads, int wide>
MINFER_FN void values(const KVState& kv, int64_t kv_head, const Keys& keys, const float* p,
                          int64_t d, float* out, int64_t out_stride) {
    vf acc[heads][wide];
    for (int h = 0; h < heads; ++h) {
        for (int i = 0; i < wide; ++i) acc[h][i] = set1(0.0f);
    }
    for (int64_t page = keys.begin / kPage; page * kPage < keys.end; ++page) {
        const auto v = VBlock<type>::at(kv.v(keys.pages[page], kv_head), kv.head_dim);
        const int64_t start = page * kPage;
        const int64_t begin = keys.begin > start ? keys.begin - start : 0;
        const int64_t end = keys.end - start < kPage ? keys.end - start : kPage;
        for (int64_t j = begin; j < end; ++j) {
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
        const vf cap = set1(softcap), inverse = set1(1.0f / softcap);
        for (int64_t i = first; i < last; i += kWidth) {
            store(s + i, cap * tanh_(load(s + i) * inverse));
        }
    }
    for (int64_t i = first; i < begin; ++i) s[i] = -__builtin_inff();
    for (int64_t i = end; i < last; ++i) s[i] = -__builtin_inff();
    vf top = load(s + first);
    for (int64_t i = first + kWidth; i < last; i += kWidth) top = max(top, load(s + i));
    const float maximum = hmax(top);
    const vf shift = set1(maximum);
    vf total = set1(0.0f);
    for (int64_t i = first; i < last; i += kWidth) {
        const vf p = exp_(load(s + i) - shift);
        store(s + i, p);
        total = total + p;
    }
    return {maximum, sum(total)};
}

template <KVType type, int heads>
void work(const AttentionArgs& a, const Item& item, const Keys& keys, int64_t head) {
    const int64_t head_dim = a.kv.head_dim;
    alignas(64) float q[heads * kMaxHeadDim];
    alignas(64) float s[heads * kChunk];
    const float* source = a.q + (item.row * a.n_heads + head) * head_dim;
    for (int64_t i = 0; i < heads * head_dim; ++i) q[i] = source[i] * a.scale;
    if (type == KVType::q8_0) {
        for (int h = 0; h < heads; ++h) rotate_blocks(q + h * head_dim, head_dim);
    }

    // Tiles are taken together where few heads leave accumulators unused.
    constexpr int kTogether = heads * kParts <= 2 ? 4 : heads * kParts <= 4 ? 2 : 1;
    const int64_t last = (keys.end + kTile - 1) / kTile;
    for (int64_t t = keys.begin / kTile; t < last;) {
        const int64_t in_page = t % (kPage / kTile);
        const uint8_t* k = a.kv.k(keys.pages[t * kTile / kPage], item.kv_head);
        if (in_page % kTogether == 0 && t + kTogether <= last) {
            scores<type, heads, kTogether>(k, in_page, q, head_dim, s + t * kTile);
            t += kTogether;
        } else {
            scores<type, heads, 1>(k, in_page, q, head_dim, s + t * kTile);
            t += 1;
        }
    }

    float* out = partial(a, item.row, head, item.chunk);
    const int64_t out_stride = max_chunks(a) * (head_dim + 2);
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
        values<type, heads, kWide>(a.kv, item.kv_head, keys, s, d, out, out_stride);
    }
    for (; d < head_dim; d += kWidth) {
        values<type, heads, 1>(a.kv, item.kv_head, keys, s, d, out, out_stride);
    }
}

template <KVType type>
void work_group(const AttentionArgs& a, const Item& item, const Keys& keys) {
    const int64_t group = a.n_heads / a.kv.n_kv_heads;
    const int64_t end = (item.kv_head + 1) * group;
    for (int64_t head = item.kv_head * group; head < end;) {
        const int64_t left = end - head;
        const int heads = int(left < kHeads ? left : kHeads);
        switch (heads) {
            case 1: work<type, 1>(a, item, keys, head); break;
            case 2: work<type, 2>(a, item, keys, head); break;
            case 3: work<type, 3>(a, item, keys, head); break;
            case 4: work<type, 4>(a, item, keys, head); break;
#if defined(MINFER_ISA_avx512)
            case 5: work<type, 5>(a, item, keys, head); break;
            case 6: work<type, 6>(a, item, keys, head); break;
            case 7: work<type, 7>(a, item, keys, head); break;
            default: work<type, 8>(a, item, keys, head); break;
#endif
        }
        head += heads;
    }
}

}  // namespace

size_t attention_single_scratch_bytes(const AttentionArgs& a) {
    return size_t(a.rows.single_places * a.n_heads * max_chunks(a) * (a.kv.head_dim + 2)) * 4;
}

void attention_single(const AttentionArgs& a, const Lane& lane) {
    const RealRows rows = a.rows.real();
    int64_t total = 0;
    for (int64_t r = 0; r < rows.singles; ++r) {
        if (!valid_row(a, r)) continue;
        const int64_t p = a.positions[r];
        total += (p / kChunk - first_key(a, p) / kChunk + 1) * a.kv.n_kv_heads;
    }
    Item item{};
    int64_t row_begin = 0, row_end = 0, next_row = 0;  // items of item.row
    for (int64_t i; (i = a.queue->next(total, lane)) >= 0;) {
        while (i >= row_end) {
            item.row = next_row++;
            if (!valid_row(a, item.row)) continue;
            item.last = a.positions[item.row];
            item.first = first_key(a, item.last);
            row_begin = row_end;
            row_end += (item.last / kChunk - item.first / kChunk + 1) * a.kv.n_kv_heads;
        }
        item.kv_head = (i - row_begin) % a.kv.n_kv_heads;
        item.chunk = item.first / kChunk + (i - row_begin) / a.kv.n_kv_heads;
        const int64_t start = item.chunk * kChunk;
        Keys keys;
        keys.begin = item.first > start ? item.first - start : 0;
        keys.end = item.last + 1 - start < kChunk ? item.last + 1 - start : kChunk;
        const int32_t* table =
            a.page_table + a.seqs[item.row] * a.max_pages + start / kPage;
        bool valid = true;
        for (int64_t page = keys.begin / kPage; page * kPage < keys.end; ++page) {
            valid = valid && a.fault->check("attention: page", table[page], a.kv.n_pages);
            keys.pages[page] = table[page];
        }
        if (!valid) continue;
        switch (a.kv.type) {
            case KVType::f32: work_group<KVType::f32>(a, item, keys); break;
            case KVType::f16: work_group<KVType::f16>(a, item, keys); break;
            case KVType::q8_0: work_group<KVType::q8_0>(a, item, keys); break;
        }
    }
}

void attention_combine(const AttentionArgs& a, const Lane& lane) {
    const int64_t head_dim = a.kv.head_dim;
    const Range share = lane.share(a.rows.real().singles * a.n_heads);
    for (int64_t i = share.begin; i < share.end; ++i) {
        const int64_t row = i / a.n_heads, head = i % a.n_heads;
        if (!valid_row(a, row)) continue;
        const int64_t position = a.positions[row];
        const int64_t begin = first_key(a, position) / kChunk, end = position / kChunk + 1;
        float maximum = -__builtin_inff();
        for (int64_t c = begin; c < end; ++c) {
            const float m = partial(a, row, head, c)[head_dim];
            maximum = m > maximum ? m : maximum;
        }
        float* y = a.y + i * head_dim;
        float total = 0;
        for (int64_t d = 0; d < head_dim; d += kWidth) store(y + d, set1(0.0f));
        for (int64_t c = begin; c < end; ++c) {
            const float* part = partial(a, row, head, c);
            const vf weight = exp_(set1(part[head_dim] - maximum));
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
