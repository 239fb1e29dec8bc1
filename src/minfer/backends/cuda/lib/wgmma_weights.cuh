// Weights as A of warpgroup products, expanded in registers: a warp's 16 rows, half a strip at a
// time. Types may differ among the warps of a warpgroup, so nothing that branches on one
// multiplies. x is in the order of `ordered_offset` (`act.cuh`).
#include "lib/segments.cuh"
#include "lib/wgmma.cuh"

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
// Reads a strip of a piece.
struct ReadStrip {
    const u8* piece;
    int s, lane;
    StripWords& words;

    template <class F>
    DEVICE void run() const {
        words = strip_at<F>(piece, s, lane);
    }
};

// Expands half H of a strip, 64 of K, to A of four products.
template <int H>
struct ExpandHalf {
    const StripWords& words;
    u32 (&a)[4][4];

    template <class F>
    DEVICE void run() const {
        Strip<F> from(words);
        quarter<0>(from);
        quarter<1>(from);
    }

    template <int I, class F>
    DEVICE void quarter(const Strip<F>& from) const {
        u32 w[2][4];
        from.template expand<2 * H + I>(w);
#pragma unroll
        for (int i = 0; i < 4; i++)
#pragma unroll
            for (int h = 0; h < 2; h++) a[2 * I + i / 2][i % 2 * 2 + h] = w[h][i];
    }
};
#endif
