// The order in which the single-row kernels add: what makes their results equal bit for bit.
//
// The K of a product is cut into parts of PIECES * 256. A part is one chain of tensor-core products
// over ascending k into f32 accumulators that start at 0. Parts are added in order into a section of
// SECTION parts, sections in order into the result. Any kernel that follows this, on whatever blocks
// and warps, whatever other rows it computes beside, gives the same bits.
#include "lib/base.cuh"
#include "lib/mma.cuh"

#ifndef SECTION
#define SECTION 8
#endif

struct Sum {
    float section = 0.0f, sections = 0.0f;

    // Parts arrive in order; `part` counts from 0.
    DEVICE void add(float x, int part) {
        if (part % SECTION == 0) {
            sections += section;
            section = x;
        } else {
            section += x;
        }
    }
    DEVICE float total() const { return sections + section; }
};

// Four products: 16 weights of each of a lane's two rows (`Strip::expand`) with a lane's share of
// 8 columns of activations, 16 values as 2 vectors 64 bytes apart (`stage_activations`).
DEVICE void multiply_half(float (&acc)[4], const u32 (&w)[2][8], const u8* x) {
    uint4 a = *(const uint4*)x, b = *(const uint4*)(x + 64);
    mma_f16(acc, w[0][0], w[1][0], w[0][1], w[1][1], a.x, a.y);
    mma_f16(acc, w[0][2], w[1][2], w[0][3], w[1][3], a.z, a.w);
    mma_f16(acc, w[0][4], w[1][4], w[0][5], w[1][5], b.x, b.y);
    mma_f16(acc, w[0][6], w[1][6], w[0][7], w[1][7], b.z, b.w);
}
