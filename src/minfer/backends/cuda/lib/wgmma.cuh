// Warpgroup matrix products (sm_90a): B in shared memory, A in registers, f32 accumulators, too.
//
// Operands are rows of K-major halves, 128 bytes of K a row in the 128-byte swizzle, tiles
// 1024-byte aligned (`act.cuh`, chunked). D [64][N] by thread: warp w of the four has rows
// 16w..16w+15, and lane (g, t): d[4j], d[4j+1] = (row g, columns 8j + 2t, +1), d[4j+2], d[4j+3] =
// the same of row g+8. A [64][16] in registers: each warp its 16 rows, as `mma.cuh` has them.
#include "lib/base.cuh"

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
// Descriptor of an operand: 16-byte units; 1024 bytes from one group of 8 rows to the next.
DEVICE u64 operand(u32 shared) {
    return (u64)((shared & 0x3ffff) >> 4) | (u64)1 << 16 | (u64)64 << 32 | (u64)1 << 62;
}

// The operand `bytes` further on, a multiple of 16.
DEVICE u64 operand_at(u64 operand, u32 bytes) { return operand + bytes / 16; }

DEVICE void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
DEVICE void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int PENDING>
DEVICE void wgmma_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}

// After the last wait, before accumulators are read: nothing else tells the compiler that the wait
// changes them, and it may read them too early.
template <int N>
DEVICE void settle_sums(float (&d)[N]) {
#pragma unroll
    for (int i = 0; i < N; i++) asm volatile("" : "+f"(d[i])::"memory");
}

template <int N>
DEVICE void set_registers_up() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N));
}
template <int N>
DEVICE void set_registers_down() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N));
}

// Of the m64nNk16 product: registers %0.. of eight columns of a thread's sums at a time.
#define OUT8(i)                                                                                  \
    "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]),    \
        "+f"(d[i + 6]), "+f"(d[i + 7])
#define LIST16 "%0, %1, %2, %3, %4, %5, %6, %7"
#define LIST32 LIST16 ", %8, %9, %10, %11, %12, %13, %14, %15"
#define LIST48 LIST32 ", %16, %17, %18, %19, %20, %21, %22, %23"
#define LIST64 LIST48 ", %24, %25, %26, %27, %28, %29, %30, %31"
#define LIST80 LIST64 ", %32, %33, %34, %35, %36, %37, %38, %39"
#define LIST96 LIST80 ", %40, %41, %42, %43, %44, %45, %46, %47"
#define LIST112 LIST96 ", %48, %49, %50, %51, %52, %53, %54, %55"
#define LIST128 LIST112 ", %56, %57, %58, %59, %60, %61, %62, %63"
#define LIST144 LIST128 ", %64, %65, %66, %67, %68, %69, %70, %71"
#define LIST160 LIST144 ", %72, %73, %74, %75, %76, %77, %78, %79"
#define LIST176 LIST160 ", %80, %81, %82, %83, %84, %85, %86, %87"
#define LIST192 LIST176 ", %88, %89, %90, %91, %92, %93, %94, %95"
#define LIST208 LIST192 ", %96, %97, %98, %99, %100, %101, %102, %103"
#define LIST224 LIST208 ", %104, %105, %106, %107, %108, %109, %110, %111"
#define LIST240 LIST224 ", %112, %113, %114, %115, %116, %117, %118, %119"
#define LIST256 LIST240 ", %120, %121, %122, %123, %124, %125, %126, %127"
#define OUTS16 OUT8(0)
#define OUTS32 OUTS16, OUT8(8)
#define OUTS48 OUTS32, OUT8(16)
#define OUTS64 OUTS48, OUT8(24)
#define OUTS80 OUTS64, OUT8(32)
#define OUTS96 OUTS80, OUT8(40)
#define OUTS112 OUTS96, OUT8(48)
#define OUTS128 OUTS112, OUT8(56)
#define OUTS144 OUTS128, OUT8(64)
#define OUTS160 OUTS144, OUT8(72)
#define OUTS176 OUTS160, OUT8(80)
#define OUTS192 OUTS176, OUT8(88)
#define OUTS208 OUTS192, OUT8(96)
#define OUTS224 OUTS208, OUT8(104)
#define OUTS240 OUTS224, OUT8(112)
#define OUTS256 OUTS240, OUT8(120)
// d (+)= A[64][16] B[N][16]^T; `keep` 0 forgets what d held. A is read until the product is waited
// for.
template <int N>
struct WgmmaRegisters;

// N, and the numbers of the operands after the sums.
#define WGMMA_REGISTERS(N, A0, A1, A2, A3, B, KEEP)                                           \
    template <>                                                                               \
    struct WgmmaRegisters<N> {                                                                \
        DEVICE static void run(float (&d)[N / 2], const u32 (&a)[4], u64 b, int keep) {       \
            asm volatile("{ .reg .pred p; setp.ne.b32 p, %" #KEEP ", 0; "                     \
                         "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32.f16.f16 {" LIST##N   \
                         "}, {%" #A0 ", %" #A1 ", %" #A2 ", %" #A3 "}, %" #B ", p, 1, 1, 0; }" \
                         : OUTS##N                                                            \
                         : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(keep));    \
        }                                                                                     \
    };
WGMMA_REGISTERS(32, 16, 17, 18, 19, 20, 21)
WGMMA_REGISTERS(48, 24, 25, 26, 27, 28, 29)
WGMMA_REGISTERS(64, 32, 33, 34, 35, 36, 37)
WGMMA_REGISTERS(96, 48, 49, 50, 51, 52, 53)
WGMMA_REGISTERS(128, 64, 65, 66, 67, 68, 69)
WGMMA_REGISTERS(192, 96, 97, 98, 99, 100, 101)
WGMMA_REGISTERS(256, 128, 129, 130, 131, 132, 133)
#undef WGMMA_REGISTERS
#undef OUT8
#endif
