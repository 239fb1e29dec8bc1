// What every kernel of this folder builds on: short type names, half precision, shuffles, vector
// loads, programmatic dependent launch. No CUDA headers are used anywhere, so a machine needs none.
//
// Halves are plain bits (`f16` one, `f16x2` two in a word), with the arithmetic spelled as
// functions over one PTX instruction each.
#define KERNEL extern "C" __global__ void
#define DEVICE __device__ __forceinline__

// What cards before Hopper lack. GENERIC leaves it out on any card.
#if __CUDA_ARCH__ >= 900 && !defined(GENERIC)
#define BULK_COPIES 1
#define PROGRAMMATIC 1
#else
#define BULK_COPIES 0
#define PROGRAMMATIC 0
#endif

typedef signed char i8;
typedef unsigned char u8;
typedef unsigned short u16;
typedef int i32;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long i64;
typedef u16 f16;  // bits of an IEEE half
typedef u16 bf16;  // bits of a bfloat16
typedef u32 f16x2;  // two halves, the first in the low bits

constexpr u32 FULL_MASK = 0xffffffffu;
constexpr int WARP = 32;
#define INFINITY __int_as_float(0x7f800000)

// ---- programmatic dependent launch --------------------------------------------------------------
// Every kernel calls both, in every block: `pdl_launch` first (the next kernel may start its
// prologue), `pdl_wait` before it touches anything that an earlier kernel writes or reads. A block
// that skipped the wait could let its grid end early, and then the next kernel's wait would not
// cover the kernel before. Both do nothing on cards before sm_90.

DEVICE void pdl_launch() {
#if PROGRAMMATIC
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

DEVICE void pdl_wait() {
#if PROGRAMMATIC
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// ---- half precision -----------------------------------------------------------------------------

DEVICE float f16_to_f32(f16 h) {
    float f;
    asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(h));
    return f;
}

DEVICE f16 f32_to_f16(float f) {  // round to nearest even
    f16 h;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h) : "f"(f));
    return h;
}

DEVICE float bf16_to_f32(bf16 b) { return __uint_as_float((u32)b << 16); }

DEVICE f16x2 pack_f16(float low, float high) {
    f16x2 r;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
    return r;
}

DEVICE f16x2 join_f16(f16 low, f16 high) { return (u32)low | ((u32)high << 16); }
DEVICE float low_f32(f16x2 x) { return f16_to_f32((f16)(x & 0xffff)); }
DEVICE float high_f32(f16x2 x) { return f16_to_f32((f16)(x >> 16)); }

DEVICE f16x2 add2(f16x2 a, f16x2 b) {
    f16x2 r;
    asm("add.rn.f16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
    return r;
}

DEVICE f16x2 sub2(f16x2 a, f16x2 b) {
    f16x2 r;
    asm("sub.rn.f16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
    return r;
}

DEVICE f16x2 mul2(f16x2 a, f16x2 b) {
    f16x2 r;
    asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
    return r;
}

DEVICE f16x2 fma2(f16x2 a, f16x2 b, f16x2 c) {
    f16x2 r;
    asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(c));
    return r;
}

// ---- bits ---------------------------------------------------------------------------------------

// Bytes of {a (0-3), b (4-7)} picked by the lower four nibbles of `selector`, lowest first; where
// bit 3 of a nibble is set, 0 or 255 by the sign of that byte (`__byte_perm` masks the bit away).
DEVICE u32 permute(u32 a, u32 b, u32 selector) {
    u32 r;
    asm("prmt.b32 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(selector));
    return r;
}

// ---- registers ----------------------------------------------------------------------------------

// The same number, which the compiler must then keep instead of computing it again and again.
DEVICE int keep(int x) {
    asm volatile("" : "+r"(x));
    return x;
}

// The same place; what is added to it later is added in the instruction that reads there.
template <class T>
DEVICE T* keep(T* p) {
    asm("" : "+l"(p));
    return p;
}

// ---- warps and blocks ---------------------------------------------------------------------------

DEVICE float warp_sum(float x) {
#pragma unroll
    for (int offset = 16; offset; offset >>= 1) x += __shfl_xor_sync(FULL_MASK, x, offset);
    return x;
}

DEVICE float warp_max(float x) {
#pragma unroll
    for (int offset = 16; offset; offset >>= 1) x = fmaxf(x, __shfl_xor_sync(FULL_MASK, x, offset));
    return x;
}

// Sum over a block of T threads, the same bits in every thread. `scratch` holds one float a
// warp; the caller may use it again only after a barrier.
template <int T>
DEVICE float block_sum(float x, float* scratch) {
    constexpr int n_warps = T / WARP;
    x = warp_sum(x);
    if (n_warps == 1) return x;
    if (threadIdx.x % WARP == 0) scratch[threadIdx.x / WARP] = x;
    __syncthreads();
    float sum = 0.0f;
#pragma unroll
    for (int w = 0; w < n_warps; w++) sum += scratch[w];
    return sum;
}

// Count a block in, by one thread, after a barrier behind its writes; `counter` is zero before and
// after all `n`. True for the last to arrive: then what every block wrote is visible.
DEVICE bool arrive(u32* counter, int n) {
    u32 arrived;
    asm volatile("atom.add.acq_rel.gpu.u32 %0, [%1], 1;" : "=r"(arrived) : "l"(counter) : "memory");
    if (arrived == n - 1) *counter = 0;
    return arrived == n - 1;
}
