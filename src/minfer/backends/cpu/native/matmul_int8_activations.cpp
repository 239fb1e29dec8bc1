// Quantizing activations for the int8 path: tiles of 4 rows, a scale for every 32 inputs of a row.

#include "matmul_int8.h"

#if defined(MINFER_ISA_avx512)

namespace minfer::avx512 {

namespace {

// A second term pays where a block's squared scale exceeds the row's mean square by this factor.
constexpr float kStandsOut = 1.0f;

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

template <int Distance>
MINFER_FN vf butterfly(vf x) {
    constexpr __mmask16 second = Distance == 1   ? 0xaaaa
                                 : Distance == 2 ? 0xcccc
                                 : Distance == 4 ? 0xf0f0
                                                 : 0xff00;
    __m512 other;
    if constexpr (Distance == 1) other = _mm512_permute_ps(x, 0xb1);
    if constexpr (Distance == 2) other = _mm512_permute_ps(x, 0x4e);
    if constexpr (Distance == 4) other = _mm512_shuffle_f32x4(x, x, 0xb1);
    if constexpr (Distance == 8) other = _mm512_shuffle_f32x4(x, x, 0x4e);
    return _mm512_mask_sub_ps(x + other, second, other, x);
}

// Hadamard transform of every `Points` consecutive inputs, in the order of the weights' one.
template <int Points>
MINFER_FN vf rotate(vf x) {
    if constexpr (Points >= 16) x = butterfly<8>(x);
    if constexpr (Points >= 8) x = butterfly<4>(x);
    return butterfly<1>(butterfly<2>(x));
}

MINFER_FN float largest(const Inputs& v) { return hmax(max(abs_(v.half[0]), abs_(v.half[1]))); }

// NaN if any input is NaN or infinite, else 0. Bad inputs must not quantize to good numbers.
MINFER_FN float poison(const Inputs& v) {
    return sum(fma(v.half[1], set1(0.0f), v.half[0] * set1(0.0f)));
}

// Four rows of 16 int32 that fit a byte -> data[t][r][4].
MINFER_FN void store_data(int8_t (*data)[kInt8Rows][4], const vi (&q)[kInt8Rows]) {
    __m128i row[kInt8Rows];
    for (int r = 0; r < kInt8Rows; ++r) row[r] = _mm512_cvtepi32_epi8(__m512i(q[r]));
    const __m128i a = _mm_unpacklo_epi32(row[0], row[1]), b = _mm_unpacklo_epi32(row[2], row[3]);
    const __m128i c = _mm_unpackhi_epi32(row[0], row[1]), d = _mm_unpackhi_epi32(row[2], row[3]);
    __m128i* out = reinterpret_cast<__m128i*>(data);
    _mm_storeu_si128(out, _mm_unpacklo_epi64(a, b));
    _mm_storeu_si128(out + 1, _mm_unpackhi_epi64(a, b));
    _mm_storeu_si128(out + 2, _mm_unpacklo_epi64(c, d));
    _mm_storeu_si128(out + 3, _mm_unpackhi_epi64(c, d));
}

template <int Points>
void prepare_rotated(const Reader& x, int64_t n_in, RotatedBlock* out) {
    for (int64_t k = 0; k < n_in; k += 32, ++out) {
        vi q[2][kInt8Rows];
        for (int r = 0; r < kInt8Rows; ++r) {
            Inputs v = x.read(r, k);
            const float first = sum(v.half[0]);
            out->sum[0][r] = first + sum(v.half[1]);
            out->sum[1][r] = first;
            const float bad = poison(v);
            v = {{rotate<Points>(v.half[0]), rotate<Points>(v.half[1])}};
            const float most = largest(v);
            const vf inverse = set1(most > 0 ? 127.0f / most : 0.0f);
            for (int h = 0; h < 2; ++h) q[h][r] = to_int(v.half[h] * inverse);
            const int32_t head = sum(q[0][r]);
            out->bias[0][r] = -128 * (head + sum(q[1][r]));
            out->bias[1][r] = -128 * head;
            out->scale[r] = most * (1.0f / 127) + bad;
        }
        store_data(out->data, q[0]);
        store_data(out->data + 4, q[1]);
    }
}

void prepare_wide(const Reader& x, int64_t n_in, WideBlock* out) {
    const int64_t blocks = n_in / 32;
    float squares[kInt8Rows] = {};
    for (int64_t i = 0; i < blocks; ++i) {
        for (int r = 0; r < kInt8Rows; ++r) {
            const float most = largest(x.read(r, 32 * i));
            out[i].scale[r] = most;
            squares[r] += most * most;
        }
    }
    for (int64_t i = 0; i < blocks; ++i, ++out) {
        vi high[2][kInt8Rows], low[2][kInt8Rows];
        out->has_low = 0;
        for (int r = 0; r < kInt8Rows; ++r) {
            const Inputs v = x.read(r, 32 * i);
            const float most = out->scale[r];
            const bool two = most * most * float(blocks) > kStandsOut * squares[r];
            const float inverse = most > 0 ? 127.0f / most : 0.0f;
            for (int h = 0; h < 2; ++h) {
                // a = 256 high + low; without a second term a is a multiple of 256.
                vi a = to_int(v.half[h] * set1(two ? 256.0f * inverse : inverse));
                if (!two) a = shift_left<8>(a);
                high[h][r] = shift_right<8>(a + 128);
                low[h][r] = a - shift_left<8>(high[h][r]);
            }
            out->bias[0][r] = -128 * (sum(high[0][r]) + sum(high[1][r]));
            out->bias[1][r] = -128 * (sum(low[0][r]) + sum(low[1][r]));
            out->scale[r] = most * (1.0f / 127) + poison(v);
            out->has_low |= two;
        }
        for (int h = 0; h < 2; ++h) {
            store_data(out->high + 4 * h, high[h]);
            if (out->has_low) store_data(out->low + 4 * h, low[h]);
        }
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
