// Attention of rows that share their sequence (attention_tiles.h) in f32, and the choice between
// f32 and bf16.
//
//   scores  kRows queries x kWide registers of positions, over features
//   values  kRows queries x kWide registers of features, over the positions of a page
//   floor   2 * keys * head_dim multiply-adds a query at the speed of f32 FMA: reached to 95 % on
//           long prompts
#include "attention_tiles.h"

namespace minfer::MINFER_ISA {

namespace {

// K as [4][head_dim][16], V as [64][head_dim].
struct F32 {
    using Element = float;
    using Query = float;

    template <KVType type>
    static void expand(const uint8_t* k_source, const uint8_t* v_source, int64_t head_dim,
                       int64_t begin, int64_t end, float* k, float* v) {
        for (int64_t t = 0; t < kPage / kTile; ++t) {
            const auto tile = KTile<type>::at(k_source, head_dim, t);
            for (int at = 0; at < kTile; at += kWidth) {
                for (int64_t d = 0; d < head_dim; ++d) {
                    store(k + (t * head_dim + d) * kTile + at,
                          tile.feature(d, at, tile.scale(d / kQuant, at)));
                }
            }
        }
        const auto block = VBlock<type>::at(v_source, head_dim);
        for (int64_t j = begin; j < end; ++j) {
            for (int64_t d = 0; d < head_dim; d += kWidth) {
                store(v + j * head_dim + d, block.features(j, d));
            }
        }
    }

    static Page<float> open(const KVState& kv, int64_t page, int64_t head, int64_t begin,
                            int64_t end, float* k, float* v) {
        const uint8_t *from_k = kv.k(page, head), *from_v = kv.v(page, head);
        switch (kv.type) {
            case KVType::f32:
                return {reinterpret_cast<const float*>(from_k),
                        reinterpret_cast<const float*>(from_v)};
            case KVType::f16:
                expand<KVType::f16>(from_k, from_v, kv.head_dim, begin, end, k, v);
                break;
            case KVType::q8_0:
                expand<KVType::q8_0>(from_k, from_v, kv.head_dim, begin, end, k, v);
                break;
        }
        return {k, v};
    }

    static void query(const float* x, int64_t head_dim, float* q) {
        std::memcpy(q, x, size_t(head_dim) * sizeof(float));
    }

    template <int rows, int wide>
    MINFER_FN static void scores(const float* q, const float* k, int64_t head_dim, int at,
                                 float* s) {
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

    MINFER_FN static vf weight(vf x, float* p) {
        store(p, x);
        return x;
    }

    template <int rows, int wide>
    MINFER_FN static void values(const float* p, const float* v, int64_t d, int64_t begin,
                                 int64_t end, int64_t head_dim, const float* factor, float* acc) {
        vf total[rows][wide];
        for (int r = 0; r < rows; ++r) {
            for (int i = 0; i < wide; ++i) {
                total[r][i] = load(acc + r * head_dim + d + i * kWidth) * set1(factor[r]);
            }
        }
        for (int64_t j = begin; j < end; ++j) {
            vf value[wide];
            for (int i = 0; i < wide; ++i) value[i] = load(v + j * head_dim + d + i * kWidth);
            for (int r = 0; r < rows; ++r) {
                const vf weight = set1(p[r * kPage + j]);
                for (int i = 0; i < wide; ++i) total[r][i] = fma(weight, value[i], total[r][i]);
            }
        }
        for (int r = 0; r < rows; ++r) {
            for (int i = 0; i < wide; ++i) {
                store(acc + r * head_dim + d + i * kWidth, total[r][i]);
            }
        }
    }
};

}  // namespace

#if defined(MINFER_ISA_avx512)

void attention_other_bf16(const AttentionArgs& a, uint8_t* memory, const Lane& lane);
size_t attention_other_bf16_bytes(const AttentionArgs& a);

static bool in_bf16(const AttentionArgs& a) {
    return a.rounded && a.kv.type != KVType::f32 && __builtin_cpu_supports("avx512bf16");
}

static size_t lane_bytes(const AttentionArgs& a) {
    return in_bf16(a) ? attention_other_bf16_bytes(a) : Prefill<F32>::bytes(a);
}

void attention_other(const AttentionArgs& a, const Lane& lane) {
    uint8_t* memory = a.scratch + lane_bytes(a) * size_t(lane.index);
    if (in_bf16(a)) {
        attention_other_bf16(a, memory, lane);
    } else {
        Prefill<F32>::run(a, memory, lane);
    }
}

#else

static size_t lane_bytes(const AttentionArgs& a) { return Prefill<F32>::bytes(a); }

void attention_other(const AttentionArgs& a, const Lane& lane) {
    Prefill<F32>::run(a, a.scratch + lane_bytes(a) * size_t(lane.index), lane);
}

#endif

size_t attention_other_scratch_bytes(const AttentionArgs& a, int lanes) {
    return lane_bytes(a) * size_t(lanes);
}

}  // namespace minfer::MINFER_ISA
