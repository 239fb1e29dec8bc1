// The PTX instructions that the kernels use, each a function named as the instruction is, with its
// operands in order: `translate.py` writes the calls. Operands in braces come as an array of
// pointers, registers as references, addresses of shared memory as numbers.
#pragma once
#include "cuda.h"

namespace ptx {
using namespace emulated;

template <class T, class... Rest>
std::array<T*, 1 + sizeof...(Rest)> list(T& first, Rest&... rest) {
    return {&first, &rest...};
}

// ---- halves, floats, bits, predicates -----------------------------------------------------------
inline void cvt_f32_f16(float& d, u16 a) { d = half_value(a); }
inline void cvt_rn_f16_f32(u16& d, float a) { d = half_of(a); }
inline void cvt_rn_f16x2_f32(u32& d, float high, float low) {
    d = (u32)half_of(high) << 16 | half_of(low);
}
template <class F>
inline u32 both(u32 a, u32 b, F f) {  // sums and products of halves are exact in a double
    u16 low = half_of(f((double)half_value(a & 0xffff), (double)half_value(b & 0xffff)));
    return (u32)half_of(f((double)half_value(a >> 16), (double)half_value(b >> 16))) << 16 | low;
}
inline void add_rn_f16x2(u32& d, u32 a, u32 b) {
    d = both(a, b, [](double x, double y) { return x + y; });
}
inline void sub_rn_f16x2(u32& d, u32 a, u32 b) {
    d = both(a, b, [](double x, double y) { return x - y; });
}
inline void mul_rn_f16x2(u32& d, u32 a, u32 b) {
    d = both(a, b, [](double x, double y) { return x * y; });
}
inline void fma_rn_f16x2(u32& d, u32 a, u32 b, u32 c) {
    d = (u32)half_fma(a >> 16, b >> 16, c >> 16) << 16 |
        half_fma(a & 0xffff, b & 0xffff, c & 0xffff);
}
inline void ex2_approx_ftz_f32(float& d, float a) {
    d = __builtin_exp2f(a);
    if (d < 0x1p-126f) d = 0.0f;
}
inline void max_NaN_f32(float& d, float a, float b) { d = a > b || a != a ? a : b; }
inline void rcp_approx_ftz_f32(float& d, float a) {
    d = 1.0f / a;
    if (__builtin_fabsf(d) < 0x1p-126f) d = 0.0f;
}
inline void prmt_b32(u32& d, u32 a, u32 b, u32 selector) {
    u64 all = (u64)b << 32 | a;
    d = 0;
    for (int i = 0; i < 4; i++) {
        u32 pick = selector >> (4 * i) & 15, byte = (u32)(all >> (8 * (pick & 7))) & 255;
        if (pick & 8) byte = byte & 128 ? 255 : 0;  // its sign
        d |= byte << (8 * i);
    }
}
inline void dp2a_lo_u32_u32(u32& d, u32 a, u32 b, u32 c) {
    d = (a & 0xffff) * (b & 255) + (a >> 16) * (b >> 8 & 255) + c;
}
inline void setp_ne_b32(bool& p, u32 a, u32 b) { p = a != b; }
inline void selp_u32(u32& d, u32 a, u32 b, bool p) { d = p ? a : b; }

// ---- memory -------------------------------------------------------------------------------------
template <class T, std::size_t N>
inline void load_shared(std::array<T*, N> d, u32 from) {
    const T* p = (const T*)shared_at(from, sizeof(T) * N, sizeof(T) * N);
    for (std::size_t i = 0; i < N; i++) *d[i] = p[i];
}
inline void ld_shared_v4_u32(std::array<u32*, 4> d, u32 from) { load_shared(d, from); }
inline void ld_shared_v2_f32(std::array<float*, 2> d, u32 from) { load_shared(d, from); }
inline void ld_shared__cluster_v2_f32(std::array<float*, 2> d, u32 from) { load_shared(d, from); }
inline void atom_add_acq_rel_gpu_u32(u32& d, u32* at, u32 x) {
    d = atomicAdd(at, x);
    pass_on(at);
}
inline void atom_add_acq_rel_cta_shared_u32(u32& d, u32 at, u32 x) {
    atom_add_acq_rel_gpu_u32(d, (u32*)shared_at(at, 4, 4), x);
}
inline void createpolicy_fractional_L2__evict_first_b64(u64& d, double) { d = 0; }

// ---- barriers -----------------------------------------------------------------------------------
inline void bar_sync(u32 barrier, u32 count) { block_barrier((int)barrier, count); }
inline void bar_arrive(u32 barrier, u32 count) { block_arrive((int)barrier, count); }
inline void mbarrier_init_shared_b64(u32 at, u32 count) { barrier_init(at, count); }
inline void mbarrier_arrive_shared_b64(u64&, u32 at) { barrier_arrive(at, 0); }
inline void mbarrier_arrive_expect_tx_shared_b64(u64&, u32 at, u32 bytes) {
    barrier_arrive(at, bytes);
}
inline void mbarrier_try_wait_parity_shared_b64(bool& p, u32 at, u32 parity) {
    barrier_wait(at, parity);
    p = true;
}
inline void mbarrier_test_wait_parity_shared_b64(bool& p, u32 at, u32 parity) {
    mbarrier_try_wait_parity_shared_b64(p, at, parity);
}
inline void barrier_cluster_arrive_release_aligned() { cluster_arrive(true); }
inline void barrier_cluster_arrive_relaxed_aligned() { cluster_arrive(false); }
inline void barrier_cluster_wait_acquire_aligned() { cluster_wait(true); }
inline void barrier_cluster_wait_aligned() { cluster_wait(false); }
inline void mapa_shared__cluster_u32(u32& d, u32 address, u32 rank) {
    d = address_in(address, rank);
}
inline void fence_mbarrier_init_release_cluster() { publish(); }
inline void fence_proxy_async_shared__cta() { publish(); }
inline void griddepcontrol_launch_dependents() { pdl_launch(); }
inline void griddepcontrol_wait() { pdl_wait(); }
inline void setmaxnreg_inc_sync_aligned_u32(u32) {}
inline void setmaxnreg_dec_sync_aligned_u32(u32) {}

// ---- copies -------------------------------------------------------------------------------------
inline void cp_async_bulk_shared__cluster_global_mbarrier__complete_tx__bytes(
    u32 to, const void* from, u32 bytes, u32 barrier) {
    bulk_copy(to, from, bytes, barrier);
}
inline void cp_async_bulk_shared__cluster_global_mbarrier__complete_tx__bytes_L2__cache_hint(
    u32 to, const void* from, u32 bytes, u32 barrier, u64) {
    bulk_copy(to, from, bytes, barrier);
}
inline void cp_async_bulk_prefetch_L2_global(const void* from, u32 bytes) {
    if (((u64)from | bytes) % 16 || !bytes) fail("a prefetch of %u bytes at %p", bytes, from);
    there(from, bytes);
}
inline void cp_async_cg_shared_global(u32 to, const void* from, u32 bytes, u32 real) {
    copy_async(to, from, bytes, real);
}
inline void cp_async_commit_group() { copy_commit(); }
inline void cp_async_wait_group(u32 pending) { copy_wait(pending); }
inline void cp_async_mbarrier_arrive_noinc_shared_b64(u32 barrier) { copy_arrive(barrier); }

// ---- a warp and its lanes -----------------------------------------------------------------------
inline void elect_sync(u32& leader, bool& elected, u32 mask) {
    reduce(mask, 1, Vote(), "elect.sync");  // the warp is here, whole
    leader = 0;
    elected = threadIdx.x % LANES == leader;
}

// ---- products of a warp; fragments by lane (g, t) = (lane / 4, lane % 4) ------------------------
struct Fragments {
    float c[4];
    u32 a[4], b[2];
};
// C [16][8] += A [16][16] B [16][8]
inline void mma_sync_aligned_m16n8k16_row_col_f32_f16_f16_f32(
    std::array<float*, 4> d, std::array<const u32*, 4> a, std::array<const u32*, 2> b,
    std::array<float*, 4> c) {
    Fragments mine;
    for (int i = 0; i < 4; i++) mine.a[i] = *a[i], mine.c[i] = *c[i];
    for (int i = 0; i < 2; i++) mine.b[i] = *b[i];
    meet(
        &mine,
        [](Brought lanes) {
            float a[16][16], b[16][8], c[16][8];
            for (int lane = 0; lane < LANES; lane++) {
                const Fragments& f = *(const Fragments*)lanes[lane];
                int g = lane / 4, t = lane % 4;
                for (int i = 0; i < 4; i++)
                    for (int j = 0; j < 2; j++)
                        a[g + i % 2 * 8][i / 2 * 8 + 2 * t + j] =
                            half_value((u16)(f.a[i] >> (16 * j)));
                for (int i = 0; i < 2; i++)
                    for (int j = 0; j < 2; j++)
                        b[i * 8 + 2 * t + j][g] = half_value((u16)(f.b[i] >> (16 * j)));
                for (int i = 0; i < 4; i++) c[g + i / 2 * 8][2 * t + i % 2] = f.c[i];
            }
            multiply_halves(c, a, b);
            for (int lane = 0; lane < LANES; lane++)
                for (int i = 0; i < 4; i++)
                    ((Fragments*)lanes[lane])->c[i] = c[lane / 4 + i / 2 * 8][lane % 4 * 2 + i % 2];
        },
        "mma.sync f16");
    for (int i = 0; i < 4; i++) *d[i] = mine.c[i];
}
struct ByteFragments {
    i32 c[4];
    u32 a[4], b[2];
};
// C [16][8] += A [16][32] B [32][8], unsigned and signed bytes
template <class C>
inline void mma_sync_aligned_m16n8k32_row_col_s32_u8_s8_s32(
    std::array<i32*, 4> d, std::array<const u32*, 4> a, std::array<const u32*, 2> b,
    std::array<C*, 4> c) {
    ByteFragments mine;
    for (int i = 0; i < 4; i++) mine.a[i] = *a[i], mine.c[i] = *c[i];
    for (int i = 0; i < 2; i++) mine.b[i] = *b[i];
    meet(
        &mine,
        [](Brought lanes) {
            u8 a[16][32];
            i8 b[8][32];
            for (int lane = 0; lane < LANES; lane++) {
                const ByteFragments& f = *(const ByteFragments*)lanes[lane];
                int g = lane / 4, t = lane % 4;
                for (int i = 0; i < 4; i++)
                    std::memcpy(&a[g + i % 2 * 8][i / 2 * 16 + 4 * t], &f.a[i], 4);
                for (int i = 0; i < 2; i++) std::memcpy(&b[g][i * 16 + 4 * t], &f.b[i], 4);
            }
            for (int lane = 0; lane < LANES; lane++)
                for (int i = 0; i < 4; i++) {
                    int row = lane / 4 + i / 2 * 8, column = lane % 4 * 2 + i % 2, sum = 0;
                    for (int k = 0; k < 32; k++) sum += a[row][k] * b[column][k];
                    ((ByteFragments*)lanes[lane])->c[i] += sum;
                }
        },
        "mma.sync s8");
    for (int i = 0; i < 4; i++) *d[i] = mine.c[i];
}

struct Matrices {
    u32 r[4], address;
};
template <bool TRANSPOSED>
inline void load_matrices(std::array<u32*, 4> d, u32 address) {
    Matrices mine = {{}, address};
    have_read(shared_at(address, 16, 16), 16);
    meet(
        &mine,
        [](Brought lanes) {
            for (int m = 0; m < 4; m++) {
                u16 rows[8][8];
                for (int row = 0; row < 8; row++) {
                    u32 from = ((Matrices*)lanes[8 * m + row])->address;
                    std::memcpy(rows[row], shared_at(from, 16, 16), 16);
                }
                for (int lane = 0; lane < LANES; lane++) {
                    int g = lane / 4, t = lane % 4;
                    u32 low = TRANSPOSED ? rows[2 * t][g] : rows[g][2 * t];
                    u32 high = TRANSPOSED ? rows[2 * t + 1][g] : rows[g][2 * t + 1];
                    ((Matrices*)lanes[lane])->r[m] = high << 16 | low;
                }
            }
        },
        "ldmatrix");
    for (int i = 0; i < 4; i++) *d[i] = mine.r[i];
}
inline void ldmatrix_sync_aligned_m8n8_x4_shared_b16(std::array<u32*, 4> d, u32 address) {
    load_matrices<false>(d, address);
}
inline void ldmatrix_sync_aligned_m8n8_x4_trans_shared_b16(std::array<u32*, 4> d, u32 address) {
    load_matrices<true>(d, address);
}

// ---- products of a warpgroup --------------------------------------------------------------------
struct Begun {
    float* sums;
    const u32* registers[4];
    u64 a, b;
    int n;
    bool from_registers, keep, values;
};
template <std::size_t N>
inline void begin_product(std::array<float*, N> d, Begun mine) {
    for (std::size_t i = 0; i < N; i++)
        if (d[i] != d[0] + i) fail("sums of a product are not side by side");
    mine.sums = d[0], mine.n = 2 * N;
    meet_group(
        &mine,
        [](Brought lanes) {
            const Begun& one = *(const Begun*)lanes[0];
            Product p;
            p.n = one.n, p.from_registers = one.from_registers;
            p.keep = one.keep, p.values = one.values, p.a = one.a, p.b = one.b;
            for (int lane = 0; lane < GROUP; lane++) {
                const Begun& each = *(const Begun*)lanes[lane];
                if (each.a != p.a || each.b != p.b || each.keep != p.keep)
                    fail("lanes of a warpgroup differ in a descriptor");
                p.sums[lane] = each.sums;
                for (int i = 0; i < 4; i++) p.registers[i][lane] = each.registers[i];
            }
            product(p);
        },
        "wgmma");
}
template <std::size_t N>
inline void wgmma_mma_async_sync_aligned_m64nNk16_f32_f16_f16(std::array<float*, N> d, u64 a, u64 b,
                                                              bool keep, int scale_a, int scale_b,
                                                              int a_transposed, int b_transposed) {
    if (scale_a != 1 || scale_b != 1 || a_transposed) fail("a form of wgmma not emulated");
    begin_product(d, {nullptr, {}, a, b, 0, false, keep, b_transposed != 0});
}
template <std::size_t N>
inline void wgmma_mma_async_sync_aligned_m64nNk16_f32_f16_f16(std::array<float*, N> d,
                                                              std::array<const u32*, 4> a, u64 b,
                                                              bool keep, int scale_a, int scale_b,
                                                              int b_transposed) {
    if (scale_a != 1 || scale_b != 1) fail("a form of wgmma not emulated");
    begin_product(d, {nullptr, {a[0], a[1], a[2], a[3]}, 0, b, 0, true, keep,
                      b_transposed != 0});
}
inline void wgmma_fence_sync_aligned() {}
inline void wgmma_commit_group_sync_aligned() {
    meet(nullptr, [](Brought) { products_commit(); }, "wgmma.commit_group");
}
inline void wgmma_wait_group_sync_aligned(u32 pending) {
    meet(&pending, [](Brought lanes) { products_wait(*(u32*)lanes[0]); }, "wgmma.wait_group");
    products_waited(pending);
}

}  // namespace ptx
