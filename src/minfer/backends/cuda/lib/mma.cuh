// Warp-level matrix products (sm_80+): halves in, f32 accumulators.
//
// m16n8k16 by lane (g, t) = (lane / 4, lane % 4):
//   A [16][16]: a0 (row g, k 2t, 2t+1), a1 (row g+8, same k), a2 (row g, k 2t+8, +9), a3 (row g+8)
//   B [16][8]:  b0 (k 2t, 2t+1, column g), b1 (k 2t+8, +9)
//   C [16][8]:  c0, c1 (row g, columns 2t, 2t+1), c2, c3 (row g+8)
// Any permutation of k that A and B share gives the same product.
#include "lib/base.cuh"

DEVICE void mma_f16(float (&c)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// m16n8k32 on bytes, unsigned A and signed B, exact sums of 32 bits; fragments as above with four
// values of k in a register: a0 (row g, k 4t..4t+3), a1 (row g+8), a2 (row g, k 16+4t..), a3, b0 (k
// 4t..4t+3, column g), b1 (k 16+4t..). `mma_u8_first` starts at zero.
DEVICE void mma_u8(i32 (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    asm("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
DEVICE void mma_u8_first(i32 (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    asm("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%10, %10, %10, %10};"
        : "=r"(c[0]), "=r"(c[1]), "=r"(c[2]), "=r"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "r"(0));
}

// Four 8x8 tiles of halves; lane i gives the address of row i % 8 of tile i / 8, and receives of
// each tile the pair (row lane / 4, columns 2 (lane % 4), +1).
DEVICE void load_matrix4(u32 (&r)[4], u32 address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address)
                 : "memory");
}
