// What both attention kernels share: powers of two, the cap of scores, cached bytes as halves.
#include "lib/kv.cuh"
#include "lib/mma.cuh"
#include "lib/pipeline.cuh"

constexpr float LOG2E = 1.4426950408889634f;

DEVICE float exp2_of(float x) {  // 2^x within 2 ulp; exactly 1 at 0, exactly 0 at -inf
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// Cap a score that is already scaled, and bring it to base 2: cap * tanh(score / cap) * log2(e), to
// an absolute error of a few 1e-7 * cap, which is what counts in an exponent.
DEVICE float capped(float score, float cap) {
    float growth = exp2_of(2.0f * LOG2E / cap * score);  // e^(2 score / cap)
    return cap * LOG2E * (1.0f - 2.0f / (1.0f + growth));
}

// Two signed bytes, `pair` 0 or 1 of a word, as halves times `scale`: exact up to the product.
DEVICE f16x2 bytes_to_f16(u32 word, int pair, f16x2 scale) {
    // the byte plus 128 in the mantissa of 1024: 1152 + byte
    u32 biased = permute(word ^ 0x80808080u, 0x64646464u, pair ? 0x4342 : 0x4140);
    return mul2(sub2(biased, 0x64806480u), scale);
}

// load_matrix4 with each 8 x 8 matrix transposed: a lane gets rows 2t, 2t + 1 of column g.
DEVICE void load_transposed4(u32 (&r)[4], u32 address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address)
                 : "memory");
}
