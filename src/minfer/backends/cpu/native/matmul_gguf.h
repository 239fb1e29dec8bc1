// The blocks of GGUF's quantized types, taken apart into codes, factors and small integers.
//
// Source: the GGUF/GGML type definitions. Positions in `codes` are positions in the row; IQ4 and
// FP4 codes stay indices of their tables.
#pragma once

#include <cstdint>
#include <cstring>

#include "formats.h"

namespace minfer::MINFER_ISA {

struct Block {
    uint8_t codes[256];
    uint16_t scale;    // f16, or an exponent byte
    uint16_t minimum;  // f16; nested and nibble types subtract it
    int8_t scales[16];
    uint8_t minimums[16];
};

[[gnu::always_inline]] inline uint16_t read_u16(const uint8_t* p) {
    uint16_t x;
    std::memcpy(&x, p, sizeof x);
    return x;
}

[[gnu::always_inline]] inline uint32_t read_u32(const uint8_t* p) {
    uint32_t x;
    std::memcpy(&x, p, sizeof x);
    return x;
}

// 16 bytes of nibbles -> 32 codes: the low halves come first.
[[gnu::always_inline]] inline void unpack_nibbles(const uint8_t* p, uint8_t* codes) {
    // Eight at a time: compilers make byte loops of this length scalar.
    for (int i = 0; i < 16; i += 8) {
        uint64_t q;
        std::memcpy(&q, p + i, sizeof q);
        const uint64_t low = q & 0x0f0f0f0f0f0f0f0f, high = q >> 4 & 0x0f0f0f0f0f0f0f0f;
        std::memcpy(codes + i, &low, sizeof low);
        std::memcpy(codes + 16 + i, &high, sizeof high);
    }
}

// 64 bytes of bit pairs -> 256 codes (Q2_K, Q3_K): of each 32 bytes, the lowest pairs come first.
[[gnu::always_inline]] inline void unpack_pairs(const uint8_t* p, uint8_t* codes) {
    uint8_t q[64];  // a copy: what is written does not overlap it
    std::memcpy(q, p, sizeof q);
    for (int half = 0; half < 2; ++half) {
        for (int pair = 0; pair < 4; ++pair, codes += 32) {
            for (int i = 0; i < 32; ++i) codes[i] = q[32 * half + i] >> (2 * pair) & 3;
        }
    }
}

// Bit i of `bits` is the fifth bit of code i.
[[gnu::always_inline]] inline void add_fifth_bits(uint32_t bits, uint8_t* codes) {
    for (int i = 0; i < 32; i += 8) {
        // Copies of eight bits, one kept in each byte, moved to bit 7, then to bit 4.
        const uint64_t spread = (bits >> i & 255) * 0x0101010101010101 & 0x8040201008040201;
        const uint64_t fifth = (spread + 0x7f7f7f7f7f7f7f7f) >> 3 & 0x1010101010101010;
        uint64_t q;
        std::memcpy(&q, codes + i, sizeof q);
        q |= fifth;
        std::memcpy(codes + i, &q, sizeof q);
    }
}

// The twelve bytes that hold eight 6-bit scales and eight 6-bit minimums (Q4_K, Q5_K).
[[gnu::always_inline]] inline void unpack_scales_6bit(const uint8_t* q, Block& b) {
    for (int i = 0; i < 4; ++i) {
        b.scales[i] = int8_t(q[i] & 63);
        b.minimums[i] = q[4 + i] & 63;
        b.scales[4 + i] = int8_t((q[8 + i] & 15) | (q[i] >> 6) << 4);
        b.minimums[4 + i] = uint8_t(q[8 + i] >> 4 | (q[4 + i] >> 6) << 4);
    }
}

template <Format F>
[[gnu::always_inline]] inline void unpack(const uint8_t* p, Block& b) {
    if constexpr (F == Format::Q4_0 || F == Format::IQ4_NL) {
        b.scale = read_u16(p);
        unpack_nibbles(p + 2, b.codes);
    } else if constexpr (F == Format::Q4_1) {
        b.scale = read_u16(p);
        b.minimum = read_u16(p + 2);
        unpack_nibbles(p + 4, b.codes);
    } else if constexpr (F == Format::Q5_0) {
        b.scale = read_u16(p);
        unpack_nibbles(p + 6, b.codes);
        add_fifth_bits(read_u32(p + 2), b.codes);
    } else if constexpr (F == Format::Q5_1) {
        b.scale = read_u16(p);
        b.minimum = read_u16(p + 2);
        unpack_nibbles(p + 8, b.codes);
        add_fifth_bits(read_u32(p + 4), b.codes);
    } else if constexpr (F == Format::Q8_0) {
        b.scale = read_u16(p);
        for (int i = 0; i < 32; ++i) b.codes[i] = p[2 + i] ^ 0x80;
    } else if constexpr (F == Format::MXFP4) {
        b.scale = p[0];
        unpack_nibbles(p + 1, b.codes);
    } else if constexpr (F == Format::Q2_K) {
        for (int i = 0; i < 16; ++i) {
            b.scales[i] = int8_t(p[i] & 15);
            b.minimums[i] = p[i] >> 4;
        }
        unpack_pairs(p + 16, b.codes);
        b.scale = read_u16(p + 80);
        b.minimum = read_u16(p + 82);
    } else if constexpr (F == Format::Q3_K) {
        const uint8_t* s = p + 96;
        for (int i = 0; i < 16; ++i) {
            const int low = s[i % 8] >> (i / 8 * 4) & 15;
            b.scales[i] = int8_t((low | (s[8 + i % 4] >> (i / 4 * 2) & 3) << 4) - 32);
        }
        unpack_pairs(p + 32, b.codes);
        uint8_t high[32];
        std::memcpy(high, p, sizeof high);
        for (int bit = 0; bit < 8; ++bit) {
            for (int i = 0; i < 32; ++i) {
                b.codes[32 * bit + i] |= uint8_t((high[i] >> bit & 1) << 2);
            }
        }
        b.scale = read_u16(p + 108);
    } else if constexpr (F == Format::Q4_K || F == Format::Q5_K) {
        b.scale = read_u16(p);
        b.minimum = read_u16(p + 2);
        unpack_scales_6bit(p + 4, b);
        const uint8_t* high = p + 16;
        const uint8_t* q = p + (F == Format::Q5_K ? 48 : 16);
        for (int i = 0; i < 4; ++i) {
            for (int j = 0; j < 32; ++j) {
                uint8_t low = q[32 * i + j] & 15, up = q[32 * i + j] >> 4;
                if constexpr (F == Format::Q5_K) {
                    low |= uint8_t((high[j] >> (2 * i) & 1) << 4);
                    up |= uint8_t((high[j] >> (2 * i + 1) & 1) << 4);
                }
                b.codes[64 * i + j] = low;
                b.codes[64 * i + 32 + j] = up;
            }
        }
    } else if constexpr (F == Format::Q6_K) {
        for (int i = 0; i < 2; ++i) {
            const uint8_t* low = p + 64 * i;
            const uint8_t* high = p + 128 + 32 * i;
            uint8_t* codes = b.codes + 128 * i;
            for (int j = 0; j < 32; ++j) {
                codes[j] = uint8_t((low[j] & 15) | (high[j] & 3) << 4);
                codes[32 + j] = uint8_t((low[32 + j] & 15) | (high[j] >> 2 & 3) << 4);
                codes[64 + j] = uint8_t(low[j] >> 4 | (high[j] >> 4 & 3) << 4);
                codes[96 + j] = uint8_t(low[32 + j] >> 4 | high[j] >> 6 << 4);
            }
        }
        std::memcpy(b.scales, p + 192, 16);
        b.scale = read_u16(p + 208);
    } else {
        static_assert(F == Format::IQ4_XS);
        b.scale = read_u16(p);
        const int high = read_u16(p + 2);
        for (int i = 0; i < 8; ++i) {
            const int low = p[4 + i / 2] >> (i % 2 * 4) & 15;
            b.scales[i] = int8_t((low | (high >> (2 * i) & 3) << 4) - 32);
            unpack_nibbles(p + 8 + 16 * i, b.codes + 32 * i);
        }
    }
}

// Half of 2^(e - 127): the scale of MXFP4's doubled numbers.
[[gnu::always_inline]] inline float half_power(uint32_t e) {
    const uint32_t bits = e < 2 ? 0x00200000u << e : (e - 1) << 23;
    float x;
    std::memcpy(&x, &bits, sizeof x);
    return x;
}

// Call f with the quantized type as a template argument.
template <typename Function>
[[gnu::always_inline]] inline void with_quantized(Format format, Function&& f) {
    switch (format) {
        case Format::Q4_0: return f.template operator()<Format::Q4_0>();
        case Format::Q4_1: return f.template operator()<Format::Q4_1>();
        case Format::Q5_0: return f.template operator()<Format::Q5_0>();
        case Format::Q5_1: return f.template operator()<Format::Q5_1>();
        case Format::Q8_0: return f.template operator()<Format::Q8_0>();
        case Format::Q2_K: return f.template operator()<Format::Q2_K>();
        case Format::Q3_K: return f.template operator()<Format::Q3_K>();
        case Format::Q4_K: return f.template operator()<Format::Q4_K>();
        case Format::Q5_K: return f.template operator()<Format::Q5_K>();
        case Format::Q6_K: return f.template operator()<Format::Q6_K>();
        case Format::IQ4_NL: return f.template operator()<Format::IQ4_NL>();
        case Format::IQ4_XS: return f.template operator()<Format::IQ4_XS>();
        case Format::MXFP4: return f.template operator()<Format::MXFP4>();
        default: __builtin_unreachable();  // plain numbers are handled before
    }
}

}  // namespace minfer::MINFER_ISA
