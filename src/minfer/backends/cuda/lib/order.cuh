// The order in which the single-row kernels add: what makes their results equal bit for bit.
//
// The K of a product is cut into parts of so many pieces of 256. A part is one chain of tensor-core
// products over ascending k into f32 accumulators that start at 0. Parts are added in order into a
// section of so many parts, sections in order into the result. Any kernel that follows this, on
// whatever blocks and warps, whatever other rows it computes beside, gives the same bits.
#include "lib/base.cuh"
#include "lib/mma.cuh"

struct Sum {
    int length, left = 0;  // parts a section, and how many the section at hand still takes
    float section = 0.0f, sections = 0.0f;

    DEVICE Sum(int length) : length(length) {}
    DEVICE void add(float x) {  // parts in order
        if (left == 0) {
            sections += section;
            section = x;
            left = length;
        } else {
            section += x;
        }
        left--;
    }
    DEVICE float total() const { return sections + section; }
};

// Two products: 8 weights of each of a lane's two rows (`Strip::expand<Q>`) with vector Q of a
// lane's share of 8 columns of activations (`act.cuh`).
DEVICE void multiply(float (&acc)[4], const u32 (&w)[2][4], uint4 x) {
    mma_f16(acc, w[0][0], w[1][0], w[0][1], w[1][1], x.x, x.y);
    mma_f16(acc, w[0][2], w[1][2], w[0][3], w[1][3], x.z, x.w);
}

// The same of two independent sums, in turn, so that neither waits for itself.
DEVICE void multiply_both(float (&acc0)[4], const u32 (&w0)[2][4], uint4 x0, float (&acc1)[4],
                          const u32 (&w1)[2][4], uint4 x1) {
    mma_f16(acc0, w0[0][0], w0[1][0], w0[0][1], w0[1][1], x0.x, x0.y);
    mma_f16(acc1, w1[0][0], w1[1][0], w1[0][1], w1[1][1], x1.x, x1.y);
    mma_f16(acc0, w0[0][2], w0[1][2], w0[0][3], w0[1][3], x0.z, x0.w);
    mma_f16(acc1, w1[0][2], w1[1][2], w1[0][3], w1[1][3], x1.z, x1.w);
}
