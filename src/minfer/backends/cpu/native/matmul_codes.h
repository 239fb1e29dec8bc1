// Reading a packed panel (matmul_layout.h) into registers: codes, scales and minimums of columns.
//
// A panel's 16 columns are kParts registers; a reader looks at one of these parts. It keeps no
// registers: loads repeat where two codes share a plane or two groups a factor.
#pragma once

#include "matmul_layout.h"
#include "simd.h"

namespace minfer::MINFER_ISA {

constexpr int kParts = kPanel / kWidth;

template <Format F>
struct PanelReader {
    static constexpr Traits kTraits = traits(F);
    static constexpr BlockLayout kLayout{kTraits};
    const uint8_t* block;
    int part;

    MINFER_FN vf half(int i) const {
        return load_f16(reinterpret_cast<const uint16_t*>(block) + i + part * kWidth);
    }

    // Scale of a group of the block.
    MINFER_FN vf scale(int group) const {
        const uint8_t* integers = block + kLayout.factors + group * kPanel + part * kWidth;
        if constexpr (kTraits.scales == Scales::half) {
            return half(0);
        } else if constexpr (kTraits.scales == Scales::power) {
            // 2^(e - 128), the doubled numbers' scale; 0 instead of the two subnormal powers.
            return as_vf(shift_left<23>(load_u8(block + part * kWidth))) * set1(0.5f);
        } else if constexpr (kTraits.scales == Scales::nibble) {
            return half(0) * to_float(load_u8(integers) & 15);
        } else {
            return half(0) * load_i8(integers);
        }
    }

    // What a group adds for each unit of its inputs' sum.
    MINFER_FN vf minimum(int group) const {
        static_assert(kTraits.minimum);
        const uint8_t* integers = block + kLayout.factors + group * kPanel + part * kWidth;
        if constexpr (kTraits.scales == Scales::half) {
            return half(kPanel);
        } else if constexpr (kTraits.scales == Scales::nibble) {
            return (set1(0.0f) - half(kPanel)) * to_float(shift_right<4>(load_u8(integers)));
        } else {
            return (set1(0.0f) - half(kPanel)) * load_i8(integers + kLayout.groups * kPanel);
        }
    }

    // Codes of inputs 4T..4T+3 of one chunk of 32.
    template <int T>
    MINFER_FN vb code(int chunk) const {
        constexpr int bits = kTraits.bits;
        const uint8_t* p = block + kLayout.codes() + chunk * kLayout.chunk + part * 4 * kWidth;
        if constexpr (bits == 8) {
            return load_bytes(p + T * kPlane);
        } else if constexpr (bits < 4) {
            const vb pairs = load_bytes(p + T / 4 * kPlane);
            const vb low = shift_bytes<T % 4 * 2>(pairs) & set1_bytes(3);
            if constexpr (bits == 2) return low;
            return low | (shift_bytes<T - 2>(load_bytes(p + 2 * kPlane)) & set1_bytes(4));
        } else {
            const vb halves = load_bytes(p + T % 4 * kPlane);
            const vb low = shift_bytes<T / 4 * 4>(halves) & set1_bytes(15);
            if constexpr (bits == 5) {
                return low | (shift_bytes<T - 4>(load_bytes(p + 4 * kPlane)) & set1_bytes(16));
            } else if constexpr (bits == 6) {
                const vb pairs = load_bytes(p + (4 + T / 4) * kPlane);
                return low | (shift_bytes<T % 4 * 2 - 4>(pairs) & set1_bytes(0x30));
            } else if constexpr (kTraits.codes == Codes::iq4) {
                return lookup(repeat16(kIq4Codes), low);
            } else if constexpr (kTraits.codes == Codes::fp4) {
                return lookup(repeat16(kFp4Codes), low);
            } else {
                return low;
            }
        }
    }
};

}  // namespace minfer::MINFER_ISA
