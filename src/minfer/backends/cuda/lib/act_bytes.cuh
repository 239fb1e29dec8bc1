// Activations as the one-row kernels read them: 16 bits a value, in two signed bytes, and a scale
// for every 16 values. The error of a value is at most 2^-16 of the largest of its 16.
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

DEVICE u32 magnitude(float x) { return __float_as_uint(x) & 0x7fffffffu; }

// Makes a strip of a warp's values, lane i having values 4i..4i+3.
DEVICE void pack_strip(u8* codes, u8* scales, float4 v, int lane) {
    // as integers, so that what is not a number is the largest
    u32 top = max(max(magnitude(v.x), magnitude(v.y)), max(magnitude(v.z), magnitude(v.w)));
    top = max(top, __shfl_xor_sync(FULL_MASK, top, 1));
    top = max(top, __shfl_xor_sync(FULL_MASK, top, 2));
    float largest = __uint_as_float(top);
    float inverse = largest > 1e-30f ? CODE_MAX / largest : 0.0f;
    float scale = largest <= 1e-30f ? 0.0f : largest * (1.0f / CODE_MAX);
    int q0 = __float2int_rn(v.x * inverse), q1 = __float2int_rn(v.y * inverse);
    int q2 = __float2int_rn(v.z * inverse), q3 = __float2int_rn(v.w * inverse);
    int sum = q0 + q1 + q2 + q3;
    sum += __shfl_xor_sync(FULL_MASK, sum, 1);
    sum += __shfl_xor_sync(FULL_MASK, sum, 2);
    // an even lane has weights 0-3 of eight and needs 4, 5; an odd one has 4-7 and needs 2, 3
    bool odd = lane & 1;
    // codes plus 128 in 16 bits: their upper byte is rounded, their lower one signed but for a bit
    u32 a = permute(q0 + 128, q1 + 128, 0x5410), b = permute(q2 + 128, q3 + 128, 0x5410);
    u32 other = __shfl_xor_sync(FULL_MASK, odd ? a : b, 1);
    u32 first = odd ? other : a, second = odd ? b : other;
    u8* to = codes + lane / 8 * 64 + lane % 8 * 4;
    *(u32*)to = permute(first, second, 0x7351);
    *(u32*)(to + 32) = permute(first, second, 0x6240) ^ 0x80808080u;
    if (lane % 4 == 0) ((float2*)scales)[lane / 4] = make_float2(scale, scale * (float)sum);
}
