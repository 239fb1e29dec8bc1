// Warpgroup matrix products (sm_90a): both operands in shared memory, f32 accumulators in
// registers.
//
// Operands are rows of K-major halves, 128 bytes of K a row in the 128-byte swizzle, tiles
// 1024-byte aligned (`act.cuh`, chunked). D [64][N] by thread: warp w of the four has rows
// 16w..16w+15, and lane (g, t): d[4j], d[4j+1] = (row g, columns 8j + 2t, +1), d[4j+2], d[4j+3] =
// the same of row g+8.
#include "lib/base.cuh"

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
// Descriptor of an operand: 16-byte units; 1024 bytes from one group of 8 rows to the next.
DEVICE u64 operand(u32 shared) {
    return (u64)((shared & 0x3ffff) >> 4) | (u64)1 << 16 | (u64)64 << 32 | (u64)1 << 62;
}

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

// d (+)= A[64][16] B[N][16]^T; `keep` 0 forgets what d held.
template <int N>
struct Wgmma;

#define OUT8(i)                                                                                  \
    "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]),    \
        "+f"(d[i + 6]), "+f"(d[i + 7])

template <>
struct Wgmma<256> {
    DEVICE static void run(float (&d)[128], u64 a, u64 b, int keep) {
        asm volatile(
        "{ .reg .pred p; setp.ne.b32 p, %130, 0; "
        "wgmma.mma_async.sync.aligned.m64n256k16.f32.f16.f16 "
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
        "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "
        "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "
        "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, "
        "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, "
        "%111, %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, "
        "%125, %126, %127}, "
        "%128, %129, p, 1, 1, 0, 0; }"
        : OUT8(0),
          OUT8(8),
          OUT8(16),
          OUT8(24),
          OUT8(32),
          OUT8(40),
          OUT8(48),
          OUT8(56),
          OUT8(64),
          OUT8(72),
          OUT8(80),
          OUT8(88),
          OUT8(96),
          OUT8(104),
          OUT8(112),
          OUT8(120)
        : "l"(a), "l"(b), "r"(keep));
    }
};

template <>
struct Wgmma<224> {
    DEVICE static void run(float (&d)[112], u64 a, u64 b, int keep) {
        asm volatile(
        "{ .reg .pred p; setp.ne.b32 p, %114, 0; "
        "wgmma.mma_async.sync.aligned.m64n224k16.f32.f16.f16 "
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
        "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "
        "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "
        "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, "
        "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, "
        "%111}, "
        "%112, %113, p, 1, 1, 0, 0; }"
        : OUT8(0),
          OUT8(8),
          OUT8(16),
          OUT8(24),
          OUT8(32),
          OUT8(40),
          OUT8(48),
          OUT8(56),
          OUT8(64),
          OUT8(72),
          OUT8(80),
          OUT8(88),
          OUT8(96),
          OUT8(104)
        : "l"(a), "l"(b), "r"(keep));
    }
};

template <>
struct Wgmma<192> {
    DEVICE static void run(float (&d)[96], u64 a, u64 b, int keep) {
        asm volatile(
        "{ .reg .pred p; setp.ne.b32 p, %98, 0; "
        "wgmma.mma_async.sync.aligned.m64n192k16.f32.f16.f16 "
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
        "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "
        "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "
        "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95}, "
        "%96, %97, p, 1, 1, 0, 0; }"
        : OUT8(0),
          OUT8(8),
          OUT8(16),
          OUT8(24),
          OUT8(32),
          OUT8(40),
          OUT8(48),
          OUT8(56),
          OUT8(64),
          OUT8(72),
          OUT8(80),
          OUT8(88)
        : "l"(a), "l"(b), "r"(keep));
    }
};

template <>
struct Wgmma<128> {
    DEVICE static void run(float (&d)[64], u64 a, u64 b, int keep) {
        asm volatile(
        "{ .reg .pred p; setp.ne.b32 p, %66, 0; "
        "wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 "
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
        "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
        "%64, %65, p, 1, 1, 0, 0; }"
        : OUT8(0),
          OUT8(8),
          OUT8(16),
          OUT8(24),
          OUT8(32),
          OUT8(40),
          OUT8(48),
          OUT8(56)
        : "l"(a), "l"(b), "r"(keep));
    }
};
#undef OUT8
#endif
