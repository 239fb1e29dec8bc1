// Activations as the matmul kernels read them: halves of x * 2^-ACT_SHIFT.
//
// The power of two gives a half the range of +-4 million, which gated products need, and costs
// nothing: values below 2^-8 lose bits to subnormals, an absolute error of 2^-19, where a half's
// own rounding of a value near 1 is 2^-12. What is larger becomes infinite, and shows.
#include "lib/base.cuh"

constexpr int ACT_SHIFT = 6;

DEVICE f16x2 pack_act(float a, float b) {
    constexpr float scale = 1.0f / (1 << ACT_SHIFT);
    return pack_f16(a * scale, b * scale);
}

// Quotients are rounded to 2 units in the last place: exact ones took a fifth of a product's time.
DEVICE float silu(float x) { return __fdividef(x, 1.0f + __expf(-x)); }

DEVICE float gelu(float x) {  // the tanh approximation
    float u = 0.7978845608028654f * (x + 0.044715f * x * x * x);
    return __fdividef(x, 1.0f + __expf(-2.0f * u));
}

// ---- activations and expanded weights for the many-rows kernels ---------------------------------
// "Chunked" halves: [K / 64][rows][64], K padded to 128. A row of a chunk is 128 bytes, 8 vectors
// of 8 values; the vector of rank v lies at v ^ (row & 7), the 128-byte swizzle of the tensor
// cores, so any 8-aligned range of rows of a chunk is one contiguous copy. Of each 128 values of K,
// lane t of four has values 32t..32t+31 as vectors q of 8; chunk number q / 2 has vector q of lane
// t at rank 2t + (q & 1), so that the lanes of two neighbouring rows meet in no bank of shared
// memory.
DEVICE u64 chunked_offset(int row, int n_rows, int strip, int q, int t) {  // bytes
    u64 chunk = (u64)(strip * 2 + q / 2) * n_rows + row;
    return chunk * 128 + ((2 * t + (q & 1)) ^ (row & 7)) * 16;
}

// Of a row's vector of 8 values, by its number in the row.
DEVICE u64 vector_offset(int row, int n_rows, int vector) {
    return chunked_offset(row, n_rows, vector / 16, vector & 3, vector >> 2 & 3);
}

// The same chunks in the order of `wgmma_weights.cuh`, for which x is a warpgroup product's B: the
// vector of rank v of a strip's 16 has, for each lane t in turn, values 32t + 2v and 32t + 2v + 1.
// So product m of 16 of K has as k 2t, 2t + 1 values 32t + 4m, + 1, and as k 2t + 8, 2t + 9 the
// next two: what lane t has expanded of a weight's row (`quant.cuh`).
DEVICE u64 ordered_offset(int row, int n_rows, int strip, int v) {  // bytes
    u64 chunk = (u64)(strip * 2 + v / 8) * n_rows + row;
    return chunk * 128 + ((v & 7) ^ (row & 7)) * 16;
}

// Where values 2 pair, 2 pair + 1 of a row of x are, which are neighbours in either order.
DEVICE u32* pair_at(void* x, int row, int n_rows, int pair, bool ordered) {
    int strip = pair / 64, t = pair / 16 % 4, i = pair % 16;
    u64 offset = ordered ? ordered_offset(row, n_rows, strip, i) + t * 4
                         : chunked_offset(row, n_rows, strip, i / 4, t) + i % 4 * 4;
    return (u32*)((u8*)x + offset);
}

// ---- chunked halves from the accumulators of tensor cores ---------------------------------------
// There four lanes hold 16 values of each of two rows, every lane two of each 8. Memory takes 32
// bytes of a row at a time, so they trade: each gets a vector of its own, and two lanes write 32.

// Items 0..3 are of four words, word t of each in lane t of the four; answers item t to lane t.
DEVICE uint4 traded(const u32 (&words)[4], int t) {
    bool odd = t & 1, high = t & 2;
    u32 pairs[2][2];  // of items `odd` and 2 + `odd`, the words of this lane and its neighbour
#pragma unroll
    for (int i = 0; i < 2; i++) {
        u32 even_item = words[2 * i], odd_item = words[2 * i + 1];
        u32 other = __shfl_xor_sync(FULL_MASK, odd ? even_item : odd_item, 1);
        pairs[i][0] = odd ? other : even_item;
        pairs[i][1] = odd ? odd_item : other;
    }
    u32 a = __shfl_xor_sync(FULL_MASK, high ? pairs[0][0] : pairs[1][0], 2);
    u32 b = __shfl_xor_sync(FULL_MASK, high ? pairs[0][1] : pairs[1][1], 2);
    return high ? uint4{a, b, pairs[1][0], pairs[1][1]} : uint4{pairs[0][0], pairs[0][1], a, b};
}
