// CUDA's built-in types, variables and functions, as far as the kernels use them.
#pragma once
#include <utility>

#include "runtime.h"

struct alignas(8) float2 { float x, y; };
struct alignas(16) float4 { float x, y, z, w; };
struct alignas(8) uint2 { u32 x, y; };
struct alignas(16) uint4 { u32 x, y, z, w; };
inline float2 make_float2(float x, float y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
inline uint2 make_uint2(u32 x, u32 y) { return {x, y}; }
inline uint4 make_uint4(u32 x, u32 y, u32 z, u32 w) { return {x, y, z, w}; }

// ---- arithmetic: every function rounds once, and no product is contracted with a sum ------------
extern "C" {
float expf(float), logf(float), tanhf(float), fmaf(float, float, float), rintf(float);
float fmaxf(float, float), fminf(float, float), fabsf(float), sqrtf(float);
double ceil(double), sin(double), cos(double);
}
inline float __expf(float x) { return expf(x); }
inline float __fdividef(float x, float y) { return x / y; }
inline float __fadd_rn(float x, float y) { return x + y; }
inline float __fsub_rn(float x, float y) { return x - y; }
inline float __fmul_rn(float x, float y) { return x * y; }
inline float __fdiv_rn(float x, float y) { return x / y; }
inline float __fmaf_rn(float x, float y, float z) { return fmaf(x, y, z); }
inline float rsqrtf(float x) { return (float)(1.0 / __builtin_sqrt((double)x)); }
inline void sincospif(float x, float* s, float* c) {
    double angle = 3.14159265358979323846 * x;
    *s = (float)sin(angle), *c = (float)cos(angle);
}
inline int __float2int_rn(float x) {  // saturates; what is not a number gives 0
    return x != x ? 0 : x >= 0x1p31f ? 0x7fffffff : x < -0x1p31f ? -0x7fffffff - 1 : (int)rintf(x);
}
template <class A, class B>
constexpr std::common_type_t<A, B> min(A a, B b) {
    std::common_type_t<A, B> x = a, y = b;
    return y < x ? y : x;
}
template <class A, class B>
constexpr std::common_type_t<A, B> max(A a, B b) {
    std::common_type_t<A, B> x = a, y = b;
    return x < y ? y : x;
}

// ---- bits ---------------------------------------------------------------------------------------
template <class To, class From>
inline To bits_as(From from) {
    static_assert(sizeof(To) == sizeof(From));
    To to;
    std::memcpy(&to, &from, sizeof(to));
    return to;
}
inline float __uint_as_float(u32 x) { return bits_as<float>(x); }
inline float __int_as_float(i32 x) { return bits_as<float>(x); }
inline u32 __float_as_uint(float x) { return bits_as<u32>(x); }
inline int __popc(u32 x) { return __builtin_popcount(x); }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline int __ffsll(long long x) { return __builtin_ffsll(x); }

// ---- memory -------------------------------------------------------------------------------------
#define UNWATCHED __attribute__((no_sanitize("thread")))  // who asks tells of the access
template <class T>
inline T __ldg(const T* p) { return *p; }
template <class T>
UNWATCHED inline T __ldcg(const T* p) {
    emulated::read_ahead(p, sizeof(T));
    return *p;
}
template <class T>
inline void __stcg(T* p, T value) { *p = value; }
template <class T>
UNWATCHED inline T atomicAdd(T* p, T x) {
    emulated::counted(p, sizeof(T));
    T before = *p;
    *p += x;
    return before;
}
template <class T>
UNWATCHED inline T atomicMin(T* p, T x) {
    emulated::counted(p, sizeof(T));
    T before = *p;
    *p = min(before, x);
    return before;
}
template <class T>
UNWATCHED inline T atomicMax(T* p, T x) {
    emulated::counted(p, sizeof(T));
    T before = *p;
    *p = max(before, x);
    return before;
}
inline std::size_t __cvta_generic_to_shared(const void* p) { return emulated::address_of(p); }
template <class T>
inline T& emulated_static(int variable) {
    return *(T*)emulated::static_shared(variable, sizeof(T), alignof(T) < 16 ? 16 : alignof(T));
}

// ---- meetings of a warp, which is always whole --------------------------------------------------
inline void __syncthreads() { emulated::block_barrier(0, 0); }
inline void __syncwarp() { emulated::warp_barrier(); }

namespace emulated {
template <class T>
struct Shuffled {
    T value, found;
    int argument;
};
inline void whole(u32 mask) {
    if (mask != 0xffffffffu) fail("a warp function for the lanes %#x only", mask);
}
template <class T, class Source>
inline T shuffle(u32 mask, T value, int argument, Source, const char* what) {
    whole(mask);
    Shuffled<T> mine = {value, value, argument};
    meet(
        &mine,
        [](Brought lanes) {
            for (int i = 0; i < LANES; i++) {
                auto& to = *(Shuffled<T>*)lanes[i];
                int from = Source::of(i, to.argument);
                if (from >= 0) to.found = ((Shuffled<T>*)lanes[from])->value;
            }
        },
        what);
    return mine.found;
}
struct Across {
    static int of(int lane, int mask) { return lane ^ mask; }
};
struct Below {
    static int of(int lane, int offset) { return lane - offset; }
};
struct From {
    static int of(int, int lane) { return lane & 31; }
};
template <class Fold>
inline u32 reduce(u32 mask, u32 value, Fold, const char* what) {
    whole(mask);
    u32 mine = value;
    meet(
        &mine,
        [](Brought lanes) {
            u32 result = 0;
            for (int i = 0; i < LANES; i++) result = Fold::add(result, *(u32*)lanes[i], i);
            for (int i = 0; i < LANES; i++) *(u32*)lanes[i] = result;
        },
        what);
    return mine;
}
struct Sum {
    static u32 add(u32 all, u32 x, int) { return all + x; }
};
struct Vote {
    static u32 add(u32 all, u32 x, int lane) { return all | (u32)(x != 0) << lane; }
};
}  // namespace emulated

template <class T>
inline T __shfl_xor_sync(u32 mask, T x, int other) {
    return emulated::shuffle(mask, x, other, emulated::Across(), "__shfl_xor_sync");
}
template <class T>
inline T __shfl_up_sync(u32 mask, T x, u32 offset) {
    return emulated::shuffle(mask, x, (int)offset, emulated::Below(), "__shfl_up_sync");
}
template <class T>
inline T __shfl_sync(u32 mask, T x, int lane) {
    return emulated::shuffle(mask, x, lane, emulated::From(), "__shfl_sync");
}
inline u32 __reduce_add_sync(u32 mask, u32 x) {
    return emulated::reduce(mask, x, emulated::Sum(), "__reduce_add_sync");
}
inline u32 __ballot_sync(u32 mask, int x) {
    return emulated::reduce(mask, (u32)x, emulated::Vote(), "__ballot_sync");
}
inline int __any_sync(u32 mask, int x) {
    return emulated::reduce(mask, (u32)x, emulated::Vote(), "__any_sync") != 0;
}
