// The weights of `quant.cuh` as bytes and f32 scales, for tensor cores that multiply integers.
//
// Value of a weight = (byte * scale + summand) * 2^-EXCESS, times the row's factor.
#include "lib/quant.cuh"

// Integers of 2 to 4 bits sit in the upper bits of their bytes: shifts to the left are products,
// which have a pipe of their own, while shifts to the right wait for that of logic.
template <class F>
constexpr int BYTE_SHIFT = F::MAIN <= 4 && F::EXTRA == 0 && !F::TABLE ? 8 - F::MAIN : 0;
// Scales are stored that much too large, in powers of two, and summands are made so.
template <class F>
constexpr int EXCESS = Packed<F>::EXPONENT + BYTE_SHIFT<F>;

DEVICE constexpr float power2_f32(int e) {
    return e < 0 ? 1.0f / (1ull << -e) : (float)(1ull << e);
}

// Byte `i` of x, less `less`, exactly.
DEVICE float byte_f32(u32 x, int i, float less) {
    return __uint_as_float(permute(x, 0x4b000000u, 0x7440u | i)) - (8388608.0f + less);
}

// Weights 8Q..8Q+7 of row half h: bytes of 0, 4, 1, 5 in `low`, of 2, 6, 3, 7 in `high`.
template <class F, int h, int Q>
DEVICE void weight_bytes(const Strip<F>& w, u32& low, u32& high) {
    if constexpr (Packed<F>::CLASSES == 1) {
        uint2 v = w.template bytes<h, Q>();
        low = v.x, high = v.y;
    } else {
        constexpr int up = BYTE_SHIFT<F> - Packed<F>::LOWEST;
        constexpr u32 mask = 0x01010101u * (Packed<F>::MAIN_MASK << BYTE_SHIFT<F>);
        u32 word = w.template fields<h, Q>();
        low = shifted<up>(word) & mask;
        high = shifted<up - Packed<F>::APART>(word) & mask;
        if constexpr (F::EXTRA == 2) {
            u32 c = w.extra[h][Q / 2];
            low |= shifted<4 - crumb_at(Q & 1, 0)>(c) & 0x30303030u;
            high |= shifted<4 - crumb_at(Q & 1, 1)>(c) & 0x30303030u;
        }
        if constexpr (F::EXTRA == 1) {
            low |= shifted<4 - bit_at(Q, 0)>(w.extra[h][0]) & 0x10101010u;
            high |= shifted<4 - bit_at(Q, 1)>(w.extra[h][0]) & 0x10101010u;
        }
    }
}

// Scale and summand of row half h, half strip H.
template <class F, int h, int H>
DEVICE void weight_factors(const Strip<F>& w, float& scale, float& summand) {
    constexpr float zero = -(float)(F::ZERO << BYTE_SHIFT<F>);
    if constexpr (F::SCALES == Scales::HALF) {
        scale = h ? high_f32(w.steps[0]) : low_f32(w.steps[0]);
        summand = zero * scale;
    } else if constexpr (F::SCALES == Scales::HALF_MIN) {
        scale = low_f32(w.steps[h]);
        summand = high_f32(w.steps[h]) * power2_f32(EXCESS<F>);
    } else if constexpr (F::SCALES == Scales::STEP) {
        u32 mine = F::GROUP == 32 && w.s ? w.steps[0] >> 16 : w.steps[0];
        float step = byte_f32(mine, F::GROUP == 16 ? 2 * h + H : h, 128.0f);
        scale = step * (h ? high_f32(w.d[0]) : low_f32(w.d[0]));
        summand = zero * scale;
    } else {
        float step, minimum;
        if constexpr (F::GROUP == 32) {
            step = byte_f32(w.steps[0], 2 * h, 0.0f);
            minimum = byte_f32(w.steps[0], 2 * h + 1, 0.0f);
        } else {
            step = byte_f32(w.steps[0] & 0x0f0f0f0fu, 2 * h + H, 0.0f);
            minimum = byte_f32(w.steps[0] >> 4 & 0x0f0f0f0fu, 2 * h + H, 0.0f);
        }
        scale = step * low_f32(w.d[h]);
        summand = minimum * (high_f32(w.d[h]) * power2_f32(EXCESS<F> - MIN_EXPONENT));
    }
}
