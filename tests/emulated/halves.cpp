// Arithmetic of halves: their values, rounding, and the products of a warp.
#include <cmath>

#include "state.h"

namespace emulated {

float halves[65536];

void fill_halves() {
    for (u32 i = 0; i < 65536; i++) {
        int exponent = i >> 10 & 31, mantissa = i & 1023;
        float x = exponent == 31 ? (mantissa ? NAN : INFINITY)
                  : exponent     ? std::ldexp(1024.0f + mantissa, exponent - 25)
                                 : std::ldexp((float)mantissa, -24);
        halves[i] = i >> 15 ? -x : x;
    }
}

u16 half_of(double x, double rest) {
    u64 bits;
    if (rest != 0) {  // to odd, so that rounding again is right
        std::memcpy(&bits, &x, 8);
        if (!(bits & 1)) x = std::nextafter(x, rest > 0 ? INFINITY : -INFINITY);
    }
    u16 sign = std::signbit(x) ? 0x8000 : 0;
    double size = std::fabs(x);
    if (size != size) return 0x7fff;
    if (size >= 65520.0) return sign | 0x7c00;
    if (size < 0x1p-14) return sign | (u16)std::nearbyint(size * 0x1p24);
    int exponent;
    double mantissa = std::frexp(size, &exponent);  // in [0.5, 1)
    return sign | (u16)(((exponent + 13) << 10) + (int)std::nearbyint(mantissa * 2048) );
}

u16 half_fma(u16 a, u16 b, u16 c) {
    double product = (double)halves[a] * halves[b], other = halves[c], sum = product + other;
    if (!std::isfinite(sum)) return half_of(sum);
    double rounded = sum - product;
    return half_of(sum, (product - (sum - rounded)) + (other - rounded));
}

void multiply_halves(float (&c)[16][8], const float (&a)[16][16], const float (&b)[16][8]) {
    for (int row = 0; row < 16; row++) {
        float sums[8] = {};
        for (int k = 0; k < 16; k++)
            for (int n = 0; n < 8; n++) sums[n] += a[row][k] * b[k][n];
        for (int n = 0; n < 8; n++) c[row][n] += sums[n];
    }
}
}  // namespace emulated
