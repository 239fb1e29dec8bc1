// simd.h for any processor: four lanes in plain C++, which compilers turn into whatever is there.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

namespace minfer::scalar {

#define MINFER_FN [[gnu::always_inline]] inline

inline constexpr int kWidth = 4;

// The compiler's generic vectors: arithmetic is built in.
typedef float vf __attribute__((vector_size(16)));
typedef int32_t vi __attribute__((vector_size(16)));
typedef uint32_t vb __attribute__((vector_size(16)));  // four bytes a lane, the first lowest
using vmask = vi;

// Apply an expression of the lane index i to every lane.
#define MINFER_LANES(type, expression)                 \
    type y = {};                                       \
    for (int i = 0; i < kWidth; ++i) y[i] = expression; \
    return y

MINFER_FN vf load(const float* p) { MINFER_LANES(vf, p[i]); }
MINFER_FN void store(float* p, vf a) { std::memcpy(p, &a, sizeof a); }
MINFER_FN vf load_n(const float* p, int n) { MINFER_LANES(vf, i < n ? p[i] : 0.0f); }
MINFER_FN void store_n(float* p, vf a, int n) { std::memcpy(p, &a, size_t(n) * sizeof(float)); }
MINFER_FN vf set1(float x) { MINFER_LANES(vf, x); }
MINFER_FN vi iset1(int32_t x) { MINFER_LANES(vi, x); }
MINFER_FN vf fma(vf a, vf b, vf c) { return a * b + c; }
MINFER_FN vf min(vf a, vf b) { MINFER_LANES(vf, a[i] < b[i] ? a[i] : b[i]); }
MINFER_FN vf max(vf a, vf b) { MINFER_LANES(vf, a[i] > b[i] ? a[i] : b[i]); }
MINFER_FN vf abs_(vf a) { MINFER_LANES(vf, __builtin_fabsf(a[i])); }
MINFER_FN vf sqrt_(vf a) { MINFER_LANES(vf, __builtin_sqrtf(a[i])); }
MINFER_FN float sum(vf a) { return (a[0] + a[2]) + (a[1] + a[3]); }
MINFER_FN float hmax(vf a) {
    float m = a[0];
    for (int i = 1; i < kWidth; ++i) m = a[i] > m ? a[i] : m;
    return m;
}
MINFER_FN int32_t sum(vi a) { return (a[0] + a[2]) + (a[1] + a[3]); }

MINFER_FN float bits_to_float(uint32_t bits) {
    float x;
    std::memcpy(&x, &bits, sizeof x);
    return x;
}
MINFER_FN uint32_t float_to_bits(float x) {
    uint32_t bits;
    std::memcpy(&bits, &x, sizeof bits);
    return bits;
}

// Without branches: shift fraction and exponent into place, then move the exponent by a multiply,
// which also makes subnormal numbers right; infinity and NaN get their exponent by hand.
MINFER_FN float f16_to_float(uint16_t h) {
    const uint32_t shifted = uint32_t(h & 0x7fff) << 13;
    const float moved = bits_to_float(shifted) * 0x1p112f;
    const uint32_t bits = (h & 0x7c00) == 0x7c00 ? shifted | 0x7f800000u : float_to_bits(moved);
    return bits_to_float(bits | uint32_t(h & 0x8000) << 16);
}
// Round to nearest even: for numbers that become subnormal, by adding a float whose last place is
// theirs; for the others, in integers.
MINFER_FN uint16_t float_to_f16(float x) {
    const uint32_t bits = float_to_bits(x);
    const uint32_t sign = bits >> 16 & 0x8000;
    const uint32_t a = bits & 0x7fffffff;
    uint32_t h;
    if (a > 0x7f800000) {
        h = 0x7e00 | (a >> 13 & 0x3ff);
    } else if (a >= 0x477ff000) {  // 65520 and above round to infinity
        h = 0x7c00;
    } else if (a < 0x38800000) {
        h = float_to_bits(bits_to_float(a) + 0.5f) - 0x3f000000;
    } else {
        h = (a - (112u << 23) + 0xfff + (a >> 13 & 1)) >> 13;
    }
    return uint16_t(sign | h);
}
MINFER_FN uint16_t float_to_bf16(float x) {
    const uint32_t bits = float_to_bits(x);
    return uint16_t((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}
MINFER_FN vf load_f16(const uint16_t* p) { MINFER_LANES(vf, f16_to_float(p[i])); }
MINFER_FN void store_f16(uint16_t* p, vf a) {
    for (int i = 0; i < kWidth; ++i) p[i] = float_to_f16(a[i]);
}
MINFER_FN vf load_bf16(const uint16_t* p) { MINFER_LANES(vf, bits_to_float(uint32_t(p[i]) << 16)); }
MINFER_FN void store_bf16(uint16_t* p, vf a) {
    for (int i = 0; i < kWidth; ++i) p[i] = float_to_bf16(a[i]);
}

MINFER_FN vf to_float(vi a) { MINFER_LANES(vf, float(a[i])); }
// Adding 1.5 * 2^23 leaves the integer, rounded to nearest even, in the low bits; |a| < 2^22.
MINFER_FN vi to_int(vf a) {
    MINFER_LANES(vi, int32_t(float_to_bits(a[i] + 12582912.0f)) - 0x4b400000);
}
template <int N>
MINFER_FN vi shift_right(vi a) {
    return a >> N;
}
template <int N>
MINFER_FN vi shift_left(vi a) {
    return a << N;
}
MINFER_FN vmask less(vf a, vf b) { return a < b; }
MINFER_FN vf select(vmask m, vf a, vf b) { return m ? a : b; }
MINFER_FN vf scale_pow2(vf a, vi n) {
    MINFER_LANES(vf, a[i] * bits_to_float(uint32_t(n[i] + 127) << 23));
}

MINFER_FN vi load_u8(const uint8_t* p) { MINFER_LANES(vi, p[i]); }
MINFER_FN vf load_i8(const uint8_t* p) { MINFER_LANES(vf, float(int8_t(p[i]))); }
MINFER_FN vf as_vf(vi a) { MINFER_LANES(vf, bits_to_float(uint32_t(a[i]))); }

MINFER_FN vb load_bytes(const uint8_t* p) {
    vb a;
    std::memcpy(&a, p, sizeof a);
    return a;
}
MINFER_FN void store_bytes(uint8_t* p, vb a) { std::memcpy(p, &a, sizeof a); }
MINFER_FN vb set1_bytes(uint8_t x) { MINFER_LANES(vb, x * 0x01010101u); }
MINFER_FN vb repeat16(const uint8_t* p) { return load_bytes(p); }
template <int N>
MINFER_FN vb shift_bytes(vb a) {
    return N < 0 ? a << (N < 0 ? -N : 0) : a >> (N < 0 ? 0 : N);
}
MINFER_FN vb lookup(vb table, vb index) {
    uint8_t from[16], at[16];
    std::memcpy(from, &table, 16);
    std::memcpy(at, &index, 16);
    for (uint8_t& x : at) x = from[x];
    return load_bytes(at);
}

// 32 activations are 32 int16.
MINFER_FN void store_exact(uint8_t* block, int i, vi a) {
    for (int j = 0; j < kWidth; ++j) {
        const int16_t x = int16_t(a[j]);
        std::memcpy(block + 2 * (i + j), &x, 2);
    }
}

struct ExactDot {
    static constexpr int kCodeShift = 0;
    using Operand = vb;
    vi sum;

    MINFER_FN static Operand prepare(vb codes) { return codes; }
    MINFER_FN void start(int32_t bias) { sum = iset1(bias); }
    template <int T>
    MINFER_FN void add(Operand codes, const uint8_t* block) {
        int16_t a[4];
        std::memcpy(a, block + 8 * T, 8);
        for (int i = 0; i < kWidth; ++i) {
            const uint32_t q = codes[i];
            sum[i] += int32_t(q & 255) * a[0] + int32_t(q >> 8 & 255) * a[1] +
                        int32_t(q >> 16 & 255) * a[2] + int32_t(q >> 24) * a[3];
        }
    }
    MINFER_FN vi total() const { return sum; }
};

}  // namespace minfer::scalar
