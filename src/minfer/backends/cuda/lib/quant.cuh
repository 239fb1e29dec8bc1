// Weights as the matmul kernels read them: blocks of 16 rows, in planes that expand to f16 in
// registers. How a GGUF block becomes one is `quant_gguf.cuh` and `ops/matmul_pack.cu`.
//
// BLOCK. 16 rows x F::BLOCK (128 or 256) weights of each, contiguous. Blocks follow each other
// along a row tile, tiles along the matrix: [tile][block]. Lane (g, t) = (lane / 4, lane % 4) of a
// warp owns, of every 128 weights ("strip"), weights 32t..32t+31 of rows g and g + 8: what it
// expands is its share of the A operand of eight m16n8k16 products (`mma.cuh`), with K permuted the
// same way in the activations. Everything a lane reads is one aligned vector, and a warp's vectors
// are adjacent.
//
// Planes of a block, in this order (S strips; a "word" is 32 bits; a code is a weight's integer):
//   main    4 bits: [s][row half][lane] 4 words.  8 bits: [s][row half][half strip][lane] 4 words.
//           3 bits: [s][third][lane][row half] 1 word. 2 bits: [s][lane][row half] 2 words.
//           16 bits: [s][row half][quarter][lane] 4 words.
//   extra   1 bit: [s][lane][row half] 1 word. 2 bits: [s][lane][row half] 2 words.
//   scales  see `Scales`
// Word J of a row's strip holds weights 8J..8J+7 (4 bits) as pairs i = 0..3: weight 8J+2i in nibble
// i, weight 8J+2i+1 in nibble i+4, so that a mask leaves two codes in the low bits of two halves.
// Of 2 bits, bytes of word J have weights 16J + (0 4 1 5) in bits 0-1 and 16J + (2 6 3 7) in bits
// 4-5; the next eight are two bits up. Of 3 bits, bytes of words 0-2 have weights 8J + (0 4 1 5) in
// bits 2-4 and 8J + (2 6 3 7) in bits 5-7; word 3 is in what that leaves (`fields`). Where levels
// are looked up, and of codes of 8 bits, the order of eight weights is 0 4 1 5 2 6 3 7, that of the
// bytes of `quant_bytes.cuh`. Levels are numbered anew (`packed_code`).
//
// NUMBERS. A code in the low bits of a half is the subnormal code * 2^-24, which one fma2 turns
// into code * scale + minimum, rounded once. Scales are therefore stored times 2^24 (2^20 for codes
// four bits up, 2^19 for five), and rows are normalised by a power of two so that this fits: the
// largest |scale|, |minimum| / 16 of a row lies in [2^-10, 2^-9); a plain row's largest |weight| in
// [1/2, 1). A row's outputs are multiplied by its factor at the end, exactly.
#include "lib/base.cuh"

enum class Scales {
    NONE,      // plain halves
    HALF,      // a half a group: [s][lane] (row g, row g+8)
    HALF_MIN,  // scale and minimum halves: [s][lane] (scale, min of row g, scale, min of row g+8)
    STEP,      // a byte (+128) a group times a half d a block. Groups of 16: [s][lane] bytes (row g
               // group 0, 1, row g+8 group 0, 1); of 32: [lane][s] (row g, row g+8). d: [g][row
               // half]
    STEP_MIN,  // two unsigned steps a group times (d, -dmin * 2^10). Groups of 32: [s][lane] bytes
               // (step, min of row g, of row g+8); of 16: [s][lane] bytes (step | min << 4) as
               // STEP. d: [g][row half] two halves
};

// The types. MAIN + EXTRA: bits of a code in the two planes. ZERO: the code that stands for 0.
struct Plain {
    static constexpr int BLOCK = 128, MAIN = 16, EXTRA = 0, GROUP = 32, ZERO = 0;
    static constexpr Scales SCALES = Scales::NONE;
    static constexpr bool TABLE = false;
};
struct Legacy {
    static constexpr int BLOCK = 128, MAIN = 4, EXTRA = 0, GROUP = 32, ZERO = 0;
    static constexpr Scales SCALES = Scales::HALF;
    static constexpr bool TABLE = false;
};
struct Super {
    static constexpr int BLOCK = 256, MAIN = 4, EXTRA = 0, GROUP = 16, ZERO = 0;
    static constexpr Scales SCALES = Scales::STEP;
    static constexpr bool TABLE = false;
};
struct F16 : Plain {};
struct BF16 : Plain {};
struct F32 : Plain {};
struct Q4_0 : Legacy { static constexpr int ZERO = 8; };
struct Q4_1 : Legacy { static constexpr Scales SCALES = Scales::HALF_MIN; };
struct Q5_0 : Legacy { static constexpr int EXTRA = 1, ZERO = 16; };
struct Q5_1 : Q4_1 { static constexpr int EXTRA = 1; };
struct Q8_0 : Legacy { static constexpr int MAIN = 8, ZERO = 128; };
struct Q2_K : Super {
    static constexpr int MAIN = 2;
    static constexpr Scales SCALES = Scales::STEP_MIN;
};
struct Q3_K : Super { static constexpr int MAIN = 3, ZERO = 4; };
struct Q4_K : Super {
    static constexpr int GROUP = 32;
    static constexpr Scales SCALES = Scales::STEP_MIN;
};
struct Q5_K : Q4_K { static constexpr int EXTRA = 1; };
struct Q6_K : Super { static constexpr int EXTRA = 2, ZERO = 32; };
struct Levels : Legacy {  // four bits index 16 levels, one byte (+128) each
    static constexpr int ZERO = 128;
    static constexpr bool TABLE = true;
};
struct IQ4_NL : Levels {
    static constexpr u32 T0 = 0x3f2d1801, T1 = 0x766a5d4f, T2 = 0xa6998d81, T3 = 0xf1d9c5b5;
};
struct IQ4_XS : IQ4_NL {
    static constexpr int BLOCK = 256;
    static constexpr Scales SCALES = Scales::STEP;
};
struct MXFP4 : Levels {  // the E2M1 values, doubled; the scale is halved in turn
    static constexpr u32 T0 = 0x83828180, T1 = 0x8c888684, T2 = 0x7d7e7f80, T3 = 0x74787a7c;
};

// Sizes and positions that follow from the table.
template <class F>
struct Packed {
    static constexpr int STRIPS = F::BLOCK / 128;
    static constexpr int MAIN_BYTES = 16 * F::BLOCK * F::MAIN / 8;
    static constexpr int EXTRA_BYTES = 16 * F::BLOCK * F::EXTRA / 8;
    static constexpr int STEP_BYTES =
        F::SCALES == Scales::NONE       ? 0
        : F::SCALES == Scales::HALF     ? STRIPS * 128
        : F::SCALES == Scales::HALF_MIN ? STRIPS * 256
        : F::SCALES == Scales::STEP     ? (F::GROUP == 16 ? STRIPS * 128 : STRIPS * 64)
                                        : STRIPS * 128;
    static constexpr int D_BYTES = F::SCALES == Scales::STEP       ? 32
                                   : F::SCALES == Scales::STEP_MIN ? 64
                                                                   : 0;
    static constexpr int EXTRA_AT = MAIN_BYTES;
    static constexpr int STEP_AT = EXTRA_AT + EXTRA_BYTES;
    static constexpr int D_AT = STEP_AT + STEP_BYTES;
    static constexpr int BYTES = D_AT + D_BYTES;
    static constexpr u32 MAIN_MASK = (1u << F::MAIN) - 1;
    // Codes alternate between two positions in a half, APART bits apart (CLASSES = 2), or have one.
    static constexpr int CLASSES = F::TABLE || F::MAIN == 8 ? 1 : 2;
    static constexpr int APART = F::MAIN == 3 ? 3 : 4;
    static constexpr int LOWEST = F::MAIN == 3 ? 2 : 0;  // the lower position
    // scales are stored times 2^EXPONENT, which serves the higher position
    static constexpr int EXPONENT = CLASSES == 1 ? 24 : 24 - APART - LOWEST;
    static_assert(BYTES % 16 == 0, "blocks are copied 16 bytes at a time");
};

constexpr int MIN_EXPONENT = 10;  // STEP_MIN stores -dmin * 2^10, to keep it from going subnormal

// ---- levels -------------------------------------------------------------------------------------
// One permutation looks four bytes up in eight. Where bit 3 of a code is set it gives 0 or 255, the
// sign of one of the eight, instead (`permute`); so the codes look up the lower eight levels, their
// complements the upper eight, and of the two results one is a level and the other a constant that
// the upper table allows for: the exclusive or of both is the level. For this the upper table has
// bytes below 128, so codes n and n + 8 must stand for levels on the same side of 128, and packing
// numbers them anew.

// The level of a code, as numbered in a file.
template <class F>
DEVICE constexpr u32 level(u32 code) {
    u32 four = code < 4 ? F::T0 : code < 8 ? F::T1 : code < 12 ? F::T2 : F::T3;
    return four >> (code % 4 * 8) & 255;
}

// Codes as numbered in a file and as numbered when packed, either from the other: a file's bit 3 is
// a level's sign, here bit 2 is.
DEVICE constexpr u32 renumber(u32 code) {
    return (code & 3) | (~code & 4) << 1 | (~code & 8) >> 1;
}

// The packed number of a file's code. The zero that E2M1 has below zero becomes the other one.
template <class F>
DEVICE constexpr u32 packed_code(u32 code) {
    constexpr bool two_zeros = level<F>(0) == F::ZERO && level<F>(8) == F::ZERO;
    return renumber(two_zeros && code == 8 ? 0 : code);
}

// Entries of the two tables.
template <class F>
DEVICE constexpr u32 lower_entry(u32 i) { return level<F>(renumber(i)); }
template <class F>
DEVICE constexpr u32 upper_entry(u32 i) {  // for the number whose complement is i
    return (level<F>(renumber(15 - i)) ^ (lower_entry<F>(7 - i) & 128 ? 255 : 0)) & 127;
}
DEVICE constexpr u32 word_of(u32 a, u32 b, u32 c, u32 d) { return a | b << 8 | c << 16 | d << 24; }
template <class F>
struct Tables {
    template <int i>
    static constexpr u32 lower = word_of(lower_entry<F>(i), lower_entry<F>(i + 1),
                                         lower_entry<F>(i + 2), lower_entry<F>(i + 3));
    template <int i>
    static constexpr u32 upper = word_of(upper_entry<F>(i), upper_entry<F>(i + 1),
                                         upper_entry<F>(i + 2), upper_entry<F>(i + 3));
};

// Lookups wait for the pipe of logic, shifts and permutations. That of products has nothing to do
// meanwhile, so what can be a product is one: ~x in the lower 16 bits, and the upper 16 bits.
DEVICE u32 complement16(u32 x) { return x * 0xffffu + 0xffffu; }
DEVICE u32 upper16(u32 x) {
    u32 r;
    asm("dp2a.lo.u32.u32 %0, %1, %2, %3;" : "=r"(r) : "r"(x), "r"(0x0100u), "r"(0u));
    return r;
}

// The levels of the packed codes in the lower four nibbles.
template <class F>
DEVICE u32 levels(u32 codes) {
    using T = Tables<F>;
    return permute(T::template lower<0>, T::template lower<4>, codes) ^
           permute(T::template upper<0>, T::template upper<4>, complement16(codes));
}

// A power of two 2^e, -24 <= e <= 15, in both halves.
DEVICE constexpr f16x2 power2(int e) {
    return 0x10001u * (u32)(e >= -14 ? (e + 15) << 10 : 1 << (e + 24));
}

DEVICE f16x2 negate2(f16x2 x) { return x ^ 0x80008000u; }
DEVICE f16x2 low_twice(u32 x) { return permute(x, 0, 0x1010); }
DEVICE f16x2 high_twice(u32 x) { return permute(x, 0, 0x3232); }
// Bytes `first` and `second` of x as exact halves, less `less`.
DEVICE f16x2 bytes_to_f16(u32 x, int first, int second, u32 less) {
    return sub2(permute(x, 0x64646464u, 0x4040u + first + second * 256), less);
}

// Where a weight's two bits, or its one, lie in a byte of the planes beside the main one. Of
// weights 8Q..8Q+7, byte 0 of a word has those of 0 and 2, byte 1 of 4 and 6, byte 2 of 1 and 3,
// byte 3 of 5 and 7, as the nibbles of the main plane are: `second` is 2 of the first byte.
DEVICE constexpr int crumb_at(int odd_Q, int second) { return (odd_Q ? 0 : 4) + 2 * second; }
DEVICE constexpr int bit_at(int Q, int second) { return (4 + 2 * Q) % 8 + second; }

template <int N>
DEVICE u32 shifted(u32 x) {  // left by N, right by -N
    return N < 0 ? x >> -N : x << N;
}

// What a lane has read of a strip: rows g and g+8, 32 weights each. Codes of 8 and 16 bits stay in
// the block until they expand. It has no type, to outlive a branch on one (`segments.cuh`).
struct StripWords {
    const u8* block;
    int s, lane;
    uint4 main4[2];   // MAIN == 4
    u32 main3[2][3];  // MAIN == 3
    u32 main2[2][2];  // MAIN == 2: [row half][half strip]
    u32 extra[2][2];  // EXTRA == 1: [row half][0]; EXTRA == 2: [row half][half strip]
    u32 steps[2];
    u32 d[2];
};

// The same, of a weight of type F.
template <class F>
struct Strip : StripWords {
    using P = Packed<F>;

    DEVICE explicit Strip(const StripWords& words) : StripWords(words) {}

    DEVICE Strip(const u8* block, int s, int lane) {
        this->block = block, this->s = s, this->lane = lane;
        if constexpr (F::MAIN == 4) {
            const uint4* p = (const uint4*)block + s * 64 + lane;
            main4[0] = p[0];
            main4[1] = p[32];
        }
        if constexpr (F::MAIN == 3) {
            const uint2* p = (const uint2*)block + s * 96 + lane;
#pragma unroll
            for (int i = 0; i < 3; i++) {
                uint2 v = p[32 * i];
                main3[0][i] = v.x;
                main3[1][i] = v.y;
            }
        }
        if constexpr (F::MAIN == 2) pairs(block, main2);
        if constexpr (F::EXTRA == 2) pairs(block + P::EXTRA_AT, extra);
        if constexpr (F::EXTRA == 1) {
            uint2 v = *((const uint2*)(block + P::EXTRA_AT) + s * 32 + lane);
            extra[0][0] = v.x;
            extra[1][0] = v.y;
        }
        const u8* at = block + P::STEP_AT;
        if constexpr (F::SCALES == Scales::HALF_MIN) {
            uint2 v = *((const uint2*)at + s * 32 + lane);
            steps[0] = v.x;
            steps[1] = v.y;
        } else if constexpr (F::SCALES == Scales::STEP && F::GROUP == 32) {
            steps[0] = *((const u32*)at + lane);
        } else if constexpr (F::SCALES != Scales::NONE) {
            steps[0] = *((const u32*)at + s * 32 + lane);
        }
        if constexpr (F::SCALES == Scales::STEP) {
            d[0] = *((const u32*)(block + P::D_AT) + lane / 4);
        } else if constexpr (F::SCALES == Scales::STEP_MIN) {
            uint2 v = *((const uint2*)(block + P::D_AT) + lane / 4);
            d[0] = v.x;
            d[1] = v.y;
        }
    }

    // Scale (times 2^EXPONENT) and summand of row half h, half strip H, each in both halves.
    template <int h, int H>
    DEVICE void factors(f16x2& scale, f16x2& summand) const {
        if constexpr (F::SCALES == Scales::HALF) {
            scale = h ? high_twice(steps[0]) : low_twice(steps[0]);
        } else if constexpr (F::SCALES == Scales::HALF_MIN) {
            scale = low_twice(steps[h]);
            summand = high_twice(steps[h]);
            return;
        } else if constexpr (F::SCALES == Scales::STEP && F::GROUP == 16) {
            f16x2 both = bytes_to_f16(steps[0], 2 * h, 2 * h + 1, 0x64806480u);
            both = mul2(both, h ? high_twice(d[0]) : low_twice(d[0]));
            scale = H ? high_twice(both) : low_twice(both);
        } else if constexpr (F::SCALES == Scales::STEP) {
            f16x2 both = bytes_to_f16(steps[0], 2 * s, 2 * s + 1, 0x64806480u);
            both = mul2(both, d[0]);
            scale = h ? high_twice(both) : low_twice(both);
        } else if constexpr (F::SCALES == Scales::STEP_MIN) {
            if constexpr (F::GROUP == 32) {
                f16x2 both = bytes_to_f16(steps[0], 2 * h, 2 * h + 1, 0x64006400u);
                both = mul2(both, d[h]);
                scale = low_twice(both);
                summand = mul2(high_twice(both), power2(-MIN_EXPONENT));
            } else {  // of both half strips
                u32 low = steps[0] & 0x0f0f0f0fu, high = steps[0] >> 4 & 0x0f0f0f0fu;
                f16x2 scales = bytes_to_f16(low, 2 * h, 2 * h + 1, 0x64006400u);
                f16x2 summands = bytes_to_f16(high, 2 * h, 2 * h + 1, 0x64006400u);
                scales = mul2(scales, low_twice(d[h]));
                summands = mul2(mul2(summands, high_twice(d[h])), power2(-MIN_EXPONENT));
                scale = H ? high_twice(scales) : low_twice(scales);
                summand = H ? high_twice(summands) : low_twice(summands);
            }
            return;
        }
        if constexpr (F::SCALES != Scales::NONE) {
            constexpr int zero = F::ZERO == 4 ? 2 : F::ZERO == 8 ? 3 : F::ZERO == 16 ? 4
                               : F::ZERO == 32 ? 5 : 7;
            summand = mul2(scale, negate2(power2(zero - P::EXPONENT)));
        }
    }

    // Weights 8Q..8Q+7 of both rows as pairs of halves, in order.
    template <int Q>
    DEVICE void expand(u32 (&w)[2][4]) const {
        row<0, Q>(w[0]);
        row<1, Q>(w[1]);
    }

    DEVICE void pairs(const u8* plane, u32 (&to)[2][2]) const {
        uint4 v = *((const uint4*)plane + s * 32 + lane);
        to[0][0] = v.x, to[0][1] = v.y, to[1][0] = v.z, to[1][1] = v.w;
    }

    template <int h, int Q>
    DEVICE void row(u32 (&w)[4]) const {
        if constexpr (F::MAIN == 16) {
            uint4 v = *((const uint4*)block + (s * 2 + h) * 128 + Q * 32 + lane);
            w[0] = v.x, w[1] = v.y, w[2] = v.z, w[3] = v.w;
        } else {
            f16x2 high, low, summand;
            factors<h, Q / 2>(high, summand);
            low = P::CLASSES == 2 ? mul2(high, power2(P::APART)) : high;
            codes<h, Q>(w);
#pragma unroll
            for (int i = 0; i < 4; i++) w[i] = fma2(w[i], i % 2 ? high : low, summand);
        }
    }

    // The codes, as subnormal halves.
    template <int h, int Q>
    DEVICE void codes(u32 (&w)[4]) const {
        if constexpr (P::CLASSES == 1) {
            uint2 v = bytes<h, Q>();
            w[2] = permute(v.x, 0, 0x4341);
            w[3] = permute(v.y, 0, 0x4341);
            w[0] = v.x - w[2] * 256;  // bytes 0 and 2, by a product
            w[1] = v.y - w[3] * 256;
        } else {
            u32 word = fields<h, Q>();
            pair<h, Q, 0>(word, w[0]);
            pair<h, Q, 1>(word, w[1]);
            pair<h, Q, 2>(word >> 8, w[2]);
            pair<h, Q, 3>(word >> 8, w[3]);
        }
    }

    // Codes of a byte each, where a code has one position: of 8Q + 0, 4, 1, 5, and of 2, 6, 3, 7.
    template <int h, int Q>
    DEVICE uint2 bytes() const {
        if constexpr (F::TABLE) {
            u32 word = fields<h, Q>();
            return make_uint2(levels<F>(word), levels<F>(upper16(word)));
        } else {
            return *((const uint2*)block + (((s * 2 + h) * 2 + Q / 2) * 32 + lane) * 2 + Q % 2);
        }
    }

    // Codes of pair i; an odd one's are APART bits up.
    template <int h, int Q, int i>
    DEVICE void pair(u32 word, u32& w) const {
        constexpr int up = P::APART * (i & 1), from = 8 * (i / 2);
        w = word & (0x00010001u * (P::MAIN_MASK << (P::LOWEST + up)));
        if constexpr (F::EXTRA == 2) {
            u32 c = extra[h][Q / 2];
            w |= shifted<4 + up - from - crumb_at(Q & 1, i & 1)>(c) & (0x00300030u << up);
        }
        if constexpr (F::EXTRA == 1) {
            u32 e = extra[h][0];
            w |= shifted<4 + up - from - bit_at(Q, i & 1)>(e) & (0x00100010u << up);
        }
    }

    // The main plane's bits of weights 8Q..8Q+7: in each byte, those of pairs 0 and 2 from bit
    // LOWEST on, those of 1 and 3 APART bits up.
    template <int h, int Q>
    DEVICE u32 fields() const {
        if constexpr (F::MAIN == 2) return main2[h][Q / 2] >> (Q % 2 * 2);
        if constexpr (F::MAIN == 3) {
            if constexpr (Q < 3) return main3[h][Q];
            return (main3[h][0] << 2 & 0x0c0c0c0cu) | (main3[h][1] << 4 & 0x30303030u) |
                   (main3[h][2] << 6 & 0xc0c0c0c0u);
        }
        return Q == 0 ? main4[h].x : Q == 1 ? main4[h].y : Q == 2 ? main4[h].z : main4[h].w;
    }
};
