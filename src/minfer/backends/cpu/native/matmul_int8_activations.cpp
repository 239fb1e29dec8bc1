// Quantizing activations for the int8 path: tiles of 4 rows, a scale for every 32 inputs of a row.
//
// The four rows are worked on together, so that what is reduced across a register (largest
// magnitudes, sums) is reduced for all of them at once.

#include "matmul_int8.h"

#if defined(MINFER_ISA_avx512)

namespace minfer::avx512 {

namespace {

// A second term pays where a block's squared scale exceeds the row's mean square by this factor.
constexpr float kStandsOut = 2.0f;

// One number of each row.
using Four = __m128;

// 32 inputs of one row.
struct Inputs {
    vf half[2];
};

// Rows of a tile, normalised as they are read. Rows past the last read as zeros.
class Reader {
public:
    Reader(const float* x, int64_t n_in, int rows, const float* weight, float eps)
        : x_(x), n_in_(n_in), rows_(rows), weight_(weight) {
        for (int r = 0; r < rows; ++r) {
            factor_[r] = weight ? inverse_rms(x + r * n_in, n_in, eps) : 1.0f;
        }
    }

    MINFER_FN Inputs read(int r, int64_t k) const {
        if (r >= rows_) return {{set1(0.0f), set1(0.0f)}};
        const float* p = x_ + r * n_in_ + k;
        Inputs v{{load(p), load(p + kWidth)}};
        if (weight_) {
            v.half[0] = v.half[0] * set1(factor_[r]) * load(weight_ + k);
            v.half[1] = v.half[1] * set1(factor_[r]) * load(weight_ + k + kWidth);
        }
        return v;
    }

private:
    const float* x_;
    int64_t n_in_;
    int rows_;
    const float* weight_;
    float factor_[kInt8Rows];
};

// x[i] + x[i + Distance] and x[i] - x[i + Distance], in place.
template <int Distance>
MINFER_FN vf butterfly(vf x) {
    vf other;
    if constexpr (Distance == 1) other = _mm512_permute_ps(x, 0xb1);
    if constexpr (Distance == 2) other = _mm512_permute_ps(x, 0x4e);
    if constexpr (Distance == 4) other = _mm512_shuffle_f32x4(x, x, 0xb1);
    if constexpr (Distance == 8) other = _mm512_shuffle_f32x4(x, x, 0x4e);
    constexpr auto sign = [](int i) { return i & Distance ? -1.0f : 1.0f; };
    const vf signs = _mm512_setr_ps(sign(0), sign(1), sign(2), sign(3), sign(4), sign(5), sign(6),
                                    sign(7), sign(8), sign(9), sign(10), sign(11), sign(12),
                                    sign(13), sign(14), sign(15));
    return fma(x, signs, other);
}

// Hadamard transform of every `Points` consecutive inputs, in the order of the weights' one.
template <int Points>
MINFER_FN vf rotate(vf x) {
    if constexpr (Points >= 16) x = butterfly<8>(x);
    if constexpr (Points >= 8) x = butterfly<4>(x);
    return butterfly<1>(butterfly<2>(x));
}

MINFER_FN __m128i max_lanes(__m512i x) {
    const __m256i a = _mm256_max_epu32(_mm512_castsi512_si256(x), _mm512_extracti64x4_epi64(x, 1));
    return _mm_max_epu32(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1));
}

// The largest magnitude of each row. As integers, so that NaN and infinity count as the largest:
// they end up in the scale and thus in every result of the row.
MINFER_FN Four largest(const Inputs (&rows)[kInt8Rows]) {
    __m512i m[kInt8Rows];
    unroll<kInt8Rows>([&](auto r) MINFER_LAMBDA {
        m[r] = _mm512_max_epu32(_mm512_castps_si512(abs_(rows[r].half[0])),
                                _mm512_castps_si512(abs_(rows[r].half[1])));
    });
    const __m512i ab = _mm512_max_epu32(_mm512_unpacklo_epi32(m[0], m[1]),
                                        _mm512_unpackhi_epi32(m[0], m[1]));
    const __m512i cd = _mm512_max_epu32(_mm512_unpacklo_epi32(m[2], m[3]),
                                        _mm512_unpackhi_epi32(m[2], m[3]));
    return _mm_castsi128_ps(max_lanes(
        _mm512_max_epu32(_mm512_unpacklo_epi64(ab, cd), _mm512_unpackhi_epi64(ab, cd))));
}

// most / 127 and its inverse, 0 where all inputs are 0.
MINFER_FN Four scales_of(Four most) { return _mm_mul_ps(most, _mm_set1_ps(1.0f / 127)); }
MINFER_FN Four inverse_of(Four most) {
    const __mmask8 positive = _mm_cmp_ps_mask(most, _mm_setzero_ps(), _CMP_GT_OQ);
    return _mm_maskz_div_ps(positive, _mm_set1_ps(127.0f), most);
}

// Four rows of 16 int32 that fit a byte -> data[t][r][4] for four t; returns the rows' sums.
MINFER_FN __m128i store_data(int8_t (*data)[kInt8Rows][4], const vi (&q)[kInt8Rows]) {
    __m128i row[kInt8Rows];
    unroll<kInt8Rows>(
        [&](auto r) MINFER_LAMBDA { row[r] = _mm512_cvtepi32_epi8(__m512i(q[r])); });
    const __m128i a = _mm_unpacklo_epi32(row[0], row[1]), b = _mm_unpacklo_epi32(row[2], row[3]);
    const __m128i c = _mm_unpackhi_epi32(row[0], row[1]), d = _mm_unpackhi_epi32(row[2], row[3]);
    const __m128i t[4] = {_mm_unpacklo_epi64(a, b), _mm_unpackhi_epi64(a, b),
                          _mm_unpacklo_epi64(c, d), _mm_unpackhi_epi64(c, d)};
    __m128i sums = _mm_setzero_si128();
    unroll<4>([&](auto i) MINFER_LAMBDA {
        store128(data[i], t[i]);
        sums = _mm_dpbusd_epi32(sums, _mm_set1_epi8(1), t[i]);
    });
    return sums;
}

MINFER_FN __m128i times_minus_128(__m128i x) {
    return _mm_slli_epi32(_mm_sub_epi32(_mm_setzero_si128(), x), 7);
}

// The first number of every `Points` rotated inputs is their sum.
template <int Points>
MINFER_FN float sum_of(vf rotated) {
    const float first = _mm512_cvtss_f32(rotated);
    if constexpr (Points == 16) return first;
    return first + _mm_cvtss_f32(_mm512_extractf32x4_ps(rotated, 2));
}

template <int Points>
void prepare_rotated(const Reader& x, int64_t n_in, RotatedBlock* out) {
    for (int64_t k = 0; k < n_in; k += 32, ++out) {
        Inputs v[kInt8Rows];
        unroll<kInt8Rows>([&](auto r) MINFER_LAMBDA {
            const Inputs in = x.read(r, k);
            v[r] = {{rotate<Points>(in.half[0]), rotate<Points>(in.half[1])}};
            // No type of the 4-point form has minimums, so none asks for sums.
            if constexpr (Points >= 8) {
                out->sum[1][r] = sum_of<Points>(v[r].half[0]);
                out->sum[0][r] = out->sum[1][r] + sum_of<Points>(v[r].half[1]);
            }
        });
        const Four most = largest(v);
        _mm_store_ps(out->scale, scales_of(most));
        alignas(16) float inverse[kInt8Rows];
        _mm_store_ps(inverse, inverse_of(most));
        __m128i sums[2];
        unroll<2>([&](auto h) MINFER_LAMBDA {
            vi q[kInt8Rows];
            unroll<kInt8Rows>([&](auto r) MINFER_LAMBDA {
                q[r] = to_int(v[r].half[h] * set1(inverse[r]));
            });
            sums[h] = store_data(out->data + 4 * h, q);
        });
        store128(out->bias[0], times_minus_128(_mm_add_epi32(sums[0], sums[1])));
        store128(out->bias[1], times_minus_128(sums[0]));
    }
}

MINFER_FN void read_rows(const Reader& x, int64_t k, Inputs (&v)[kInt8Rows]) {
    unroll<kInt8Rows>([&](auto r) MINFER_LAMBDA { v[r] = x.read(r, k); });
}

void prepare_wide(const Reader& x, int64_t n_in, WideBlock* out) {
    const int64_t blocks = n_in / 32;
    Inputs v[kInt8Rows];
    Four squares = _mm_setzero_ps();
    for (int64_t i = 0; i < blocks; ++i) {
        read_rows(x, 32 * i, v);
        const Four most = largest(v);
        _mm_store_ps(out[i].scale[0], most);
        squares = _mm_fmadd_ps(most, most, squares);
    }
    const Four limit = _mm_mul_ps(squares, _mm_set1_ps(kStandsOut / float(blocks)));
    for (int64_t i = 0; i < blocks; ++i, ++out) {
        read_rows(x, 32 * i, v);
        const Four most = _mm_load_ps(out->scale[0]);
        const unsigned two = _mm_cmp_ps_mask(_mm_mul_ps(most, most), limit, _CMP_GT_OQ);
        _mm_store_ps(out->scale[0], scales_of(most));
        _mm_store_ps(out->scale[1], _mm_mul_ps(scales_of(most), _mm_set1_ps(1.0f / 256)));
        alignas(16) float inverse[kInt8Rows];
        _mm_store_ps(inverse, inverse_of(most));
        __m128i high_sum[2], low_sum[2];
        unroll<2>([&](auto h) MINFER_LAMBDA {
            // a = 256 high + low; without a second term a is a multiple of 256.
            vi high[kInt8Rows], low[kInt8Rows];
            unroll<kInt8Rows>([&](auto r) MINFER_LAMBDA {
                const bool fine = two >> r & 1;
                const vi q = to_int(v[r].half[h] * set1(fine ? 256 * inverse[r] : inverse[r]));
                const vi a = fine ? q : shift_left<8>(q);
                high[r] = shift_right<8>(a + 128);
                low[r] = a - shift_left<8>(high[r]);
            });
            high_sum[h] = store_data(out->high + 4 * h, high);
            low_sum[h] = store_data(out->low + 4 * h, low);
        });
        store128(out->bias[0], times_minus_128(_mm_add_epi32(high_sum[0], high_sum[1])));
        store128(out->bias[1], times_minus_128(_mm_add_epi32(low_sum[0], low_sum[1])));
        out->has_low = two != 0;
    }
}

}  // namespace

void prepare_int8(Form form, const float* x, int64_t n_in, int rows, const float* norm_weight,
                  float norm_eps, uint8_t* tile) {
    const Reader reader(x, n_in, rows, norm_weight, norm_eps);
    RotatedBlock* rotated = reinterpret_cast<RotatedBlock*>(tile);
    switch (form) {
        case Form::rotated16: return prepare_rotated<16>(reader, n_in, rotated);
        case Form::rotated8: return prepare_rotated<8>(reader, n_in, rotated);
        case Form::rotated4: return prepare_rotated<4>(reader, n_in, rotated);
        default: return prepare_wide(reader, n_in, reinterpret_cast<WideBlock*>(tile));
    }
}

}  // namespace minfer::avx512
#endif
