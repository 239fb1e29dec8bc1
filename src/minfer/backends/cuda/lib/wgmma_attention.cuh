// Warpgroup products of attention (sm_90a): scores = queries x keys from shared memory, and
// sums += probabilities x values with the probabilities in registers and the values transposed on
// the way, since a cached value is a row of head features where the unit wants a row of keys.
//
// Accumulators are [N / 8][4] as in `lib/mma.cuh`, a warp's 16 rows each. The caller brackets calls
// with wgmma_fence, wgmma_commit and wgmma_wait.
#include "lib/wgmma.cuh"

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
// Descriptor of values: rows of 64 features in the 128-byte swizzle, `band` bytes from one 64
// features to the next, 1024 bytes from 8 keys to the next 8.
DEVICE u64 values_operand(u32 shared, u32 band) {
    return (u64)((shared & 0x3ffff) >> 4) | (u64)(band >> 4) << 16 | (u64)64 << 32 | (u64)1 << 62;
}

// After a wait, before accumulators are read: without it the compiler may read them too early,
// since nothing tells it that the wait changes them.
template <int N>
DEVICE void settle(float (&s)[N][4]) {
#pragma unroll
    for (int n = 0; n < N; n++)
        asm volatile("" : "+f"(s[n][0]), "+f"(s[n][1]), "+f"(s[n][2]), "+f"(s[n][3])::"memory");
}

template <int N>
struct WgmmaScores;  // s[64][N] (+)= q[64][16] k[N][16]^T; `keep` 0 forgets what s held
template <int N>
struct WgmmaValues;  // s[64][N] += p[64][16] v[16][N]

#define OUT4(i) "+f"(s[i][0]), "+f"(s[i][1]), "+f"(s[i][2]), "+f"(s[i][3])

template <>
struct WgmmaScores<64> {
    DEVICE static void run(float (&s)[8][4], u64 q, u64 k, int keep) {
        asm volatile(
            "{ .reg .pred p; setp.ne.b32 p, %34, 0; "
            "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 {"
            "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
            "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
            "}, %32, %33, p, 1, 1, 0, 0; }"
            : OUT4(0), OUT4(1), OUT4(2), OUT4(3), OUT4(4), OUT4(5), OUT4(6), OUT4(7)
            : "l"(q), "l"(k), "r"(keep));
    }
};

template <>
struct WgmmaScores<128> {
    DEVICE static void run(float (&s)[16][4], u64 q, u64 k, int keep) {
        asm volatile(
            "{ .reg .pred p; setp.ne.b32 p, %66, 0; "
            "wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 {"
            "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
            "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
            "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
            "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
            "}, %64, %65, p, 1, 1, 0, 0; }"
            : OUT4(0), OUT4(1), OUT4(2), OUT4(3), OUT4(4), OUT4(5), OUT4(6), OUT4(7), OUT4(8),
              OUT4(9), OUT4(10), OUT4(11), OUT4(12), OUT4(13), OUT4(14), OUT4(15)
            : "l"(q), "l"(k), "r"(keep));
    }
};

template <>
struct WgmmaValues<64> {
    DEVICE static void run(float (&s)[8][4], const u32 (&p)[4], u64 v) {
        asm volatile(
            "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 {"
            "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
            "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
            "}, {%32, %33, %34, %35}, %36, 1, 1, 1, 1;"
            : OUT4(0), OUT4(1), OUT4(2), OUT4(3), OUT4(4), OUT4(5), OUT4(6), OUT4(7)
            : "r"(p[0]), "r"(p[1]), "r"(p[2]), "r"(p[3]), "l"(v));
    }
};

template <>
struct WgmmaValues<128> {
    DEVICE static void run(float (&s)[16][4], const u32 (&p)[4], u64 v) {
        asm volatile(
            "wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 {"
            "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
            "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
            "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
            "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
            "}, {%64, %65, %66, %67}, %68, 1, 1, 1, 1;"
            : OUT4(0), OUT4(1), OUT4(2), OUT4(3), OUT4(4), OUT4(5), OUT4(6), OUT4(7), OUT4(8),
              OUT4(9), OUT4(10), OUT4(11), OUT4(12), OUT4(13), OUT4(14), OUT4(15)
            : "r"(p[0]), "r"(p[1]), "r"(p[2]), "r"(p[3]), "l"(v));
    }
};

template <>
struct WgmmaValues<256> {
    DEVICE static void run(float (&s)[32][4], const u32 (&p)[4], u64 v) {
        asm volatile(
            "wgmma.mma_async.sync.aligned.m64n256k16.f32.f16.f16 {"
            "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
            "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
            "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
            "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "
            "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "
            "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, "
            "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, "
            "%111, "
            "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, "
            "%126, %127"
            "}, {%128, %129, %130, %131}, %132, 1, 1, 1, 1;"
            : OUT4(0), OUT4(1), OUT4(2), OUT4(3), OUT4(4), OUT4(5), OUT4(6), OUT4(7), OUT4(8),
              OUT4(9), OUT4(10), OUT4(11), OUT4(12), OUT4(13), OUT4(14), OUT4(15), OUT4(16),
              OUT4(17), OUT4(18), OUT4(19), OUT4(20), OUT4(21), OUT4(22), OUT4(23), OUT4(24),
              OUT4(25), OUT4(26), OUT4(27), OUT4(28), OUT4(29), OUT4(30), OUT4(31)
            : "r"(p[0]), "r"(p[1]), "r"(p[2]), "r"(p[3]), "l"(v));
    }
};

#undef OUT4
#endif
