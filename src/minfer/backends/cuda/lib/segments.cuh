// Up to three weights of one input side by side: TYPE0, TYPE1, TYPE2 of `quant.cuh`, by tile.
#include "lib/quant.cuh"

#ifndef TYPE0
#define TYPE0 Q4_K
#endif
#ifndef TYPE1
#define TYPE1 TYPE0
#define TYPE2 TYPE0
#endif

// Rings carry pieces: 256 of K of a tile.
template <class F>
constexpr int PIECE_BYTES = 256 / F::BLOCK * Packed<F>::BYTES;
DEVICE constexpr int max3(int a, int b, int c) { return a > b ? (a > c ? a : c) : (b > c ? b : c); }
constexpr int MAX_PIECE = max3(PIECE_BYTES<TYPE0>, PIECE_BYTES<TYPE1>, PIECE_BYTES<TYPE2>);

struct Segment {
    const u8* w;
    int first_tile, block_bytes, blocks_a_piece, n_blocks;

    // A piece of a tile, and its bytes.
    DEVICE const u8* at(int tile, int piece, u32& bytes) const {
        int first = piece * blocks_a_piece;
        bytes = min(blocks_a_piece, n_blocks - first) * block_bytes;
        return w + ((u64)(tile - first_tile) * n_blocks + first) * block_bytes;
    }
};

template <class F>
DEVICE Segment segment(int k, const u8* w, int first_tile) {
    int n_blocks = ((u32)k + F::BLOCK - 1) / F::BLOCK;
    return {w, first_tile, Packed<F>::BYTES, 256 / F::BLOCK, n_blocks};
}

// The segment a tile is in; segments 1 and 2 start at tiles `first1` and `first2`.
DEVICE Segment segment_of(int tile, int k, const u8* w0, const u8* w1, const u8* w2, int first1,
                          int first2) {
    Segment found = segment<TYPE0>(k, w0, 0);
    if (tile >= first1) found = segment<TYPE1>(k, w1, first1);
    if (tile >= first2) found = segment<TYPE2>(k, w2, first2);
    return found;
}

// Strip number `strip` of the blocks at `blocks`.
template <class F>
DEVICE Strip<F> strip_at(const u8* blocks, int strip, int lane) {
    constexpr int n = Packed<F>::STRIPS;
    return Strip<F>(blocks + strip / n * Packed<F>::BYTES, strip % n, lane);
}

template <class A, class B>
constexpr bool SAME = false;
template <class A>
constexpr bool SAME<A, A> = true;

// Calls `f.run<F>()` with the type F of a tile's weight; types that are the same share the code.
template <class Function>
DEVICE void for_type(int tile, int first1, int first2, const Function& f) {
    bool in1 = tile >= first1, in2 = tile >= first2;
    if constexpr (SAME<TYPE0, TYPE1> && SAME<TYPE1, TYPE2>) {
        f.template run<TYPE0>();
    } else if constexpr (SAME<TYPE1, TYPE2>) {
        in1 ? f.template run<TYPE1>() : f.template run<TYPE0>();
    } else if constexpr (SAME<TYPE0, TYPE1>) {
        in2 ? f.template run<TYPE2>() : f.template run<TYPE0>();
    } else if constexpr (SAME<TYPE0, TYPE2>) {
        in1 && !in2 ? f.template run<TYPE1>() : f.template run<TYPE0>();
    } else {
        in2 ? f.template run<TYPE2>() : in1 ? f.template run<TYPE1>() : f.template run<TYPE0>();
    }
}
