// Activations as the one-row kernels read them: 16 bits a value, in two signed bytes, and a scale
// for every 16 values. The error of a value is about 2^-16 of the largest of its 16.
//
// Of each 128 values ("strip") the integer tensor cores take the four groups of 32 in columns of
// their own, upper and lower bytes apart: column 2t + piece has piece (0 upper, 1 lower) of group
// t, and zeros in the rows of k that other groups' weights are in. So lane (g, t) of a warp reads
// group t if g / 2 == t, and zeros otherwise.
//
// A strip in shared memory: codes [group][piece][32 bytes], the bytes in the order of
// `weight_bytes`; strips of scales [group] (scale, scaled sum) of the first and second 16.
#include "lib/base.cuh"

constexpr int CODE_STRIP = 256, SCALE_STRIP = 64;  // bytes
constexpr float CODE_MAX = 32512.0f;                // 127 * 256: its upper byte is 127, its lower 0

// A float of this size has the integer nearest to what was added in its low bits.
constexpr float WHOLE_F32 = 0x1.8p23f;
constexpr u32 WHOLE_BITS = 0x4b400000u;

// The larger magnitude; what is not a number is larger than all.
DEVICE float larger(float a, float b) {
    float r;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(r) : "f"(fabsf(a)), "f"(fabsf(b)));
    return r;
}

DEVICE float reciprocal(float x) {
    float r;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
    return r;
}

// Makes a strip of a warp's values, lane i having values 4i..4i+3. Conversions between floats and
// integers would take four times as long as additions that amount to the same.
DEVICE void pack_strip(u8* codes, u8* scales, float4 v, int lane) {
    float largest = larger(larger(v.x, v.y), larger(v.z, v.w));
    largest = larger(largest, __shfl_xor_sync(FULL_MASK, largest, 1));
    largest = larger(largest, __shfl_xor_sync(FULL_MASK, largest, 2));
    float scale = largest <= 1e-30f ? 0.0f : largest * (1.0f / CODE_MAX);
    float inverse = largest > 1e-30f ? reciprocal(scale) : 0.0f;
    // codes plus 128: in 16 bits their upper byte is rounded, their lower one signed but for a bit
    auto code = [&](float x) { return __float_as_uint(fmaf(x, inverse, WHOLE_F32 + 128.0f)); };
    u32 q0 = code(v.x), q1 = code(v.y), q2 = code(v.z), q3 = code(v.w);
    u32 bits = q0 + q1 + q2 + q3;
    bits += __shfl_xor_sync(FULL_MASK, bits, 1);
    bits += __shfl_xor_sync(FULL_MASK, bits, 2);
    float sum = __uint_as_float(bits - 16 * (WHOLE_BITS + 128) + WHOLE_BITS) - WHOLE_F32;
    // an even lane has weights 0-3 of eight and needs 4, 5; an odd one has 4-7 and needs 2, 3
    bool odd = lane & 1;
    u32 a = permute(q0, q1, 0x5410), b = permute(q2, q3, 0x5410);
    u32 other = __shfl_xor_sync(FULL_MASK, odd ? a : b, 1);
    u32 first = odd ? other : a, second = odd ? b : other;
    u8* to = codes + lane / 8 * 64 + lane % 8 * 4;
    *(u32*)to = permute(first, second, 0x7351);
    *(u32*)(to + 32) = permute(first, second, 0x6240) ^ 0x80808080u;
    if (lane % 4 == 0) ((float2*)scales)[lane / 4] = make_float2(scale, scale * sum);
}
