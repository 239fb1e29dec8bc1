// The weight types a matrix may have, as facts: how GGUF stores a block, and what its numbers are.
//
// Every quantized type is seen the same way. A value is `scale * (code - offset) + minimum`, where
// the code is an unsigned integer and scale and minimum belong to a group of 16 or 32 consecutive
// values: scale alone, or scale and minimum, stored as f16 (or a power of two) for each group, or
// as small integers that multiply an f16 of the whole block of 256.
#pragma once

#include <cstdint>

namespace minfer {

// Numbered as GGUF numbers tensor types.
enum class Format : int32_t {
    F32 = 0,
    F16 = 1,
    BF16 = 30,
    Q4_0 = 2,
    Q4_1 = 3,
    Q5_0 = 6,
    Q5_1 = 7,
    Q8_0 = 8,
    Q2_K = 10,
    Q3_K = 11,
    Q4_K = 12,
    Q5_K = 13,
    Q6_K = 14,
    IQ4_NL = 20,
    IQ4_XS = 23,
    MXFP4 = 39,
};

// Where a group's scale and minimum come from.
enum class Scales : int32_t {
    none,    // plain numbers, no groups
    half,    // f16 scale [, f16 minimum]
    power,   // one byte: an exponent of two
    nested,  // f16 factors of the block times one integer each for the group
    nibble,  // the same, with scale and minimum as the two halves of one byte
};

// What a code is before its offset is taken off.
enum class Codes : int32_t {
    plain,    // a number, for types without groups
    integer,  // the stored bits
    iq4,      // one of 16 numbers (IQ4_NL, IQ4_XS)
    fp4,      // one of 16 numbers, doubled to be whole (MXFP4)
};

struct Traits {
    int block;     // values a GGUF block holds
    int bytes;     // bytes of a GGUF block
    int bits;      // stored bits a value
    int group;     // values that share a scale
    int offset;    // taken off the code
    bool minimum;  // whether a group has a minimum
    Scales scales;
    Codes codes;
};

constexpr Traits traits(Format format) {
    switch (format) {
        //                       block bytes bits group offset minimum
        case Format::F32: return {1, 4, 32, 0, 0, false, Scales::none, Codes::plain};
        case Format::F16: return {1, 2, 16, 0, 0, false, Scales::none, Codes::plain};
        case Format::BF16: return {1, 2, 16, 0, 0, false, Scales::none, Codes::plain};
        case Format::Q4_0: return {32, 18, 4, 32, 8, false, Scales::half, Codes::integer};
        case Format::Q4_1: return {32, 20, 4, 32, 0, true, Scales::half, Codes::integer};
        case Format::Q5_0: return {32, 22, 5, 32, 16, false, Scales::half, Codes::integer};
        case Format::Q5_1: return {32, 24, 5, 32, 0, true, Scales::half, Codes::integer};
        case Format::Q8_0: return {32, 34, 8, 32, 128, false, Scales::half, Codes::integer};
        case Format::Q2_K: return {256, 84, 2, 16, 0, true, Scales::nibble, Codes::integer};
        case Format::Q3_K: return {256, 110, 3, 16, 4, false, Scales::nested, Codes::integer};
        case Format::Q4_K: return {256, 144, 4, 32, 0, true, Scales::nested, Codes::integer};
        case Format::Q5_K: return {256, 176, 5, 32, 0, true, Scales::nested, Codes::integer};
        case Format::Q6_K: return {256, 210, 6, 16, 32, false, Scales::nested, Codes::integer};
        case Format::IQ4_NL: return {32, 18, 4, 32, 128, false, Scales::half, Codes::iq4};
        case Format::IQ4_XS: return {256, 136, 4, 32, 128, false, Scales::nested, Codes::iq4};
        case Format::MXFP4: return {32, 17, 4, 32, 12, false, Scales::power, Codes::fp4};
    }
    return {};
}

constexpr bool is_quantized(Format format) { return traits(format).group != 0; }

// The numbers of a 4-bit code (source: the GGML type definitions), with the type's offset added.
inline constexpr uint8_t kIq4Codes[16] = {1,   24,  45,  63,  79,  93,  106, 118,
                                          129, 141, 153, 166, 181, 197, 217, 241};
inline constexpr uint8_t kFp4Codes[16] = {12, 13, 14, 15, 16, 18, 20, 24,
                                          12, 11, 10, 9,  8,  6,  4,  0};

}  // namespace minfer
