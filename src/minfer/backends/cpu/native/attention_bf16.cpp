// Attention of rows that share their sequence (attention_tiles.h) with both products in bf16, for
// processors with AVX512_BF16; compiled for them alone.
//
// q, K, the weights and V are rounded to 8 bits of mantissa, sums are f32. It takes 0.55-0.7 of the
// time of f32, and its error drowns in that of the 8-bit products of a model with quantized weights
// (KL distance of SmolLM2 and gemma3: 0.0008 and 0.0006 with both); `AttentionArgs::rounded` says
// whether it is one.
//
//   K       pairs of features [4][head_dim / 2][16] x 2, q likewise [head_dim / 2] x 2
//   V       pairs of positions [32][head_dim] x 2, weights likewise
//   floor   2 * keys * head_dim multiply-adds a query at the speed of vdpbf16ps, twice that of f32
#include "attention_tiles.h"

namespace minfer::avx512 {
namespace {

struct BF16 {
    using Element = uint32_t;  // a pair
    using Query = uint16_t;

    // (a, b) of each lane as a pair.
    MINFER_FN static __m512i pairs(vf a, vf b) {
        const __m512i interleave = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10,
                                                    25, 9, 24, 8, 23, 7, 22, 6, 21, 5, 20, 4, 19,
                                                    3, 18, 2, 17, 1, 16, 0);
        const __m512bh both = _mm512_cvtne2ps_pbh(b, a);
        return _mm512_permutexvar_epi16(interleave, __m512i(both));
    }

    MINFER_FN static vf dot(vf acc, __m512i a, __m512i b) {
        return _mm512_dpbf16_ps(acc, __m512bh(a), __m512bh(b));
    }

    MINFER_FN static __m512i pair(const uint16_t* p) {
        int32_t both;
        std::memcpy(&both, p, sizeof both);
        return _mm512_set1_epi32(both);
    }

    template <KVType type>
    static void expand(const uint8_t* k_source, const uint8_t* v_source, int64_t head_dim,
                       int64_t begin, int64_t end, uint32_t* k, uint32_t* v) {
        for (int64_t t = 0; t < kPage / kTile; ++t) {
            const auto tile = KTile<type>::at(k_source, head_dim, t);
            for (int64_t d = 0; d < head_dim; d += 2) {
                const vf scale = tile.scale(d / kQuant, 0);
                const __m512i both =
                    pairs(tile.feature(d, 0, scale), tile.feature(d + 1, 0, scale));
                _mm512_storeu_si512(k + (t * head_dim + d) / 2 * kTile, both);
            }
        }
        // A pair may hold one position that no query sees: whatever is there must weigh nothing.
        const auto block = VBlock<type>::at(v_source, head_dim);
        const vf zero = set1(0.0f);
        for (int64_t j = begin / 2 * 2; j < end; j += 2) {
            for (int64_t d = 0; d < head_dim; d += kWidth) {
                const vf first = j >= begin ? block.features(j, d) : zero;
                const vf second = j + 1 < end ? block.features(j + 1, d) : zero;
                _mm512_storeu_si512(v + j / 2 * head_dim + d, pairs(first, second));
            }
        }
    }

    static Page<uint32_t> open(const KVState& kv, int64_t page, int64_t head, int64_t begin,
                               int64_t end, uint32_t* k, uint32_t* v) {
        const uint8_t *from_k = kv.k(page, head), *from_v = kv.v(page, head);
        if (kv.type == KVType::f16) {
            expand<KVType::f16>(from_k, from_v, kv.head_dim, begin, end, k, v);
        } else {
            expand<KVType::q8_0>(from_k, from_v, kv.head_dim, begin, end, k, v);
        }
        return {k, v};
    }

    static void query(const float* x, int64_t head_dim, uint16_t* q) {
        for (int64_t d = 0; d < head_dim; d += kWidth) store_bf16(q + d, load(x + d));
    }

    template <int rows, int wide>
    MINFER_FN static void scores(const uint16_t* q, const uint32_t* k, int64_t head_dim, int at,
                                 float* s) {
        const uint32_t* key = k + at * head_dim / 2;  // tiles follow one another
        vf acc[rows][wide];
        for (int r = 0; r < rows; ++r) {
            for (int i = 0; i < wide; ++i) acc[r][i] = set1(0.0f);
        }
        for (int64_t d = 0; d < head_dim; d += 2) {
            __m512i feature[wide];
            for (int i = 0; i < wide; ++i) {
                feature[i] = _mm512_loadu_si512(key + (i * head_dim + d) / 2 * kTile);
            }
            for (int r = 0; r < rows; ++r) {
                const __m512i query = pair(q + r * head_dim + d);
                for (int i = 0; i < wide; ++i) acc[r][i] = dot(acc[r][i], query, feature[i]);
            }
        }
        for (int r = 0; r < rows; ++r) {
            for (int i = 0; i < wide; ++i) store(s + r * kPage + at + i * kWidth, acc[r][i]);
        }
    }

    MINFER_FN static vf weight(vf x, uint16_t* p) {
        const __m256i rounded = __m256i(_mm512_cvtneps_pbh(x));
        store256(p, rounded);
        return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(rounded), 16));
    }

    template <int rows, int wide>
    MINFER_FN static void values(const uint16_t* p, const uint32_t* v, int64_t d, int64_t begin,
                                 int64_t end, int64_t head_dim, const float* factor, float* acc) {
        vf total[rows][wide];
        for (int r = 0; r < rows; ++r) {
            for (int i = 0; i < wide; ++i) {
                total[r][i] = load(acc + r * head_dim + d + i * kWidth) * set1(factor[r]);
            }
        }
        for (int64_t j = begin / 2 * 2; j < end; j += 2) {
            __m512i value[wide];
            for (int i = 0; i < wide; ++i) {
                value[i] = _mm512_loadu_si512(v + j / 2 * head_dim + d + i * kWidth);
            }
            for (int r = 0; r < rows; ++r) {
                const __m512i weight = pair(p + r * kPage + j);
                for (int i = 0; i < wide; ++i) total[r][i] = dot(total[r][i], weight, value[i]);
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

void attention_other_bf16(const AttentionArgs& a, uint8_t* memory, const Lane& lane) {
    Prefill<BF16>::run(a, memory, lane);
}

size_t attention_other_bf16_bytes(const AttentionArgs& a) { return Prefill<BF16>::bytes(a); }

}  // namespace minfer::avx512
