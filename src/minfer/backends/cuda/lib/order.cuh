// The order in which `matmul_batch` adds: what makes its variants' results equal bit for bit.
//
// The K of a product is cut into parts of so many pieces of 256. A part is one chain of tensor-core
// products over ascending k into f32 accumulators that start at 0. Parts are added in order into a
// section of so many parts, sections in order into the result. So a row has
// the same bits on whatever blocks and warps, whatever other rows are computed beside it.
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
