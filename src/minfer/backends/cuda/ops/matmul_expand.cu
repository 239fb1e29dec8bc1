// Weights as the many-rows product reads them: halves in the chunked layout of `lib/act.cuh`.
//
// What: the f16 values of a packed weight, its rows normalised.
// Layouts: packed [tile][block] -> chunked rows first_row.. of n_rows.
// Who: a warp a strip of 16 rows x 128 weights.
// Floor: bytes. Gate and up of a 7B layer, q4_K: 76 MB read, 272 MB written, 77 us.
// Limits: K a multiple of 8, of 256 for types with blocks of 256.
// Numerics: each value rounded once to half (q2_K, q4_K, q5_K: scale and minimum too).
// Versions: 1 (2026-11): gate and up 177 us, each store half of the 32 bytes that memory takes. 2:
//   lanes trade, stores are whole: 88 us, of which 77 are the floor.
#include "lib/act.cuh"
#include "lib/quant.cuh"

#ifndef TYPE
#define TYPE Q4_K
#endif

// Writes vectors 2P and 2P + 1 of a lane's strip, which lie side by side. Neighbouring lanes trade
// one each, so that they write both 16 bytes of 32 at once: memory takes 32 at a time.
template <int P, class F>
DEVICE void expand_half(const Strip<F>& from, u8* out, int row, int n_rows, int strip, int t) {
    u32 a[2][4], b[2][4];
    from.template expand<2 * P>(a);
    from.template expand<2 * P + 1>(b);
    int odd = t & 1, q = 2 * P + odd;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        uint4 even_lane, odd_lane;  // vector q of the even lane of two, and of the odd
        u32* e = (u32*)&even_lane;
        u32* o = (u32*)&odd_lane;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            u32 other = __shfl_xor_sync(FULL_MASK, odd ? a[h][i] : b[h][i], 1);
            e[i] = odd ? other : a[h][i];
            o[i] = odd ? b[h][i] : other;
        }
        *(uint4*)(out + chunked_offset(row + h * 8, n_rows, strip, q, t & 2)) = even_lane;
        *(uint4*)(out + chunked_offset(row + h * 8, n_rows, strip, q, t | 1)) = odd_lane;
    }
}

KERNEL __launch_bounds__(256)
matmul_expand(const u8* w, u8* out, int n_tiles, int n_blocks, int first_row, int n_rows) {
    using P = Packed<TYPE>;
    pdl_launch();
    pdl_wait();
    int lane = threadIdx.x % WARP, g = lane / 4, t = lane % 4;
    int strips = n_blocks * P::STRIPS;  // K / 128, whatever the type
    int index = blockIdx.x * 8 + threadIdx.x / WARP;
    if (index >= n_tiles * strips) return;
    int tile = index / strips, strip = index % strips;
    Strip<TYPE> from(w + ((u64)tile * n_blocks + strip / P::STRIPS) * P::BYTES, strip % P::STRIPS,
                     lane);
    int row = first_row + tile * 16 + g;
    expand_half<0>(from, out, row, n_rows, strip, t);
    expand_half<1>(from, out, row, n_rows, strip, t);
}
