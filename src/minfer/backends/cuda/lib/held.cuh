// The keys and values that a warp of `attention_decode` holds: which pieces are whose, and how they
// get there. Macros of the kernel: HD, KV.
#include "lib/pieces.cuh"
#include "lib/strands.cuh"

// What a thread can ask for again, where heads of 256 leave no register to hold it in: after Hopper
// the assembler holds it all the same, through the loop over items, and on the stack. These are
// asked for where they stand; where that helps was found by compiling.
#if __CUDA_ARCH__ >= 1000
DEVICE u32 this_thread() {
    u32 x;
    asm volatile("mov.u32 %0, %tid.x;" : "=r"(x));
    return x;
}
DEVICE u32 n_blocks() {
    u32 x;
    asm volatile("mov.u32 %0, %nctaid.x;" : "=r"(x));
    return x;
}
DEVICE int anew(int x) { return keep(x); }
#else
DEVICE u32 this_thread() { return threadIdx.x; }
DEVICE u32 n_blocks() { return gridDim.x; }
DEVICE int anew(int x) { return x; }
#endif

constexpr int CHUNKS = (HD + 31) / 32;  // of 32 head features for K, the last may be 16
constexpr int BANDS = HD / 64 + HD % 64 / 32 + HD % 32 / 16;  // of 64, then 32, then 16 for V

DEVICE constexpr int chunk_values(int c) {  // a lane's; a constant in loops that are not unrolled
    return HD % 32 == 0 || HD - 32 * c >= 32 ? 8 : 4;
}
DEVICE constexpr int band_values(int b) {
    return b < HD / 64 ? 8 : b == HD / 64 && HD % 64 >= 32 ? 4 : 2;
}
DEVICE constexpr int band_start(int b) { return b <= HD / 64 ? 64 * b : HD / 32 * 32; }

// The lane's pieces of 16 keys (tiles j of 8: key 8j + g), and of their values (keys 2t, 2t + 1,
// 2t + 8, 2t + 9).
struct Keys {
    Raw piece[2][CHUNKS];
};
struct Vals {
    Raw piece[BANDS][4];
};

// Where a lane's pieces of a walk's keys are: of even chunks, of odd ones, and of a short last one.
struct KeySource {
    Source even, odd, rest;

    DEVICE KeySource(const Planes& planes, const Walk& w, int g, int t)
        : even(planes.k, planes.k_scales, w.block, w.local + g, 8 * t),
          odd(planes.k, planes.k_scales, w.block, w.local + g, 32 + 8 * t),
          rest(planes.k, planes.k_scales, w.block, w.local + g, 4 * t) {}

    // Of key tile j, chunk c + i, where c is even and i is 0 or 1.
    DEVICE void fetch(Raw& piece, int j, int i, int c, bool valid) const {
        const Source& full = i ? odd : even;
        if (chunk_values(c + i) == 8)
            full.fetch<8>(piece, 8 * j, 32 * c, valid);
        else
            rest.fetch<4>(piece, 8 * j, 32 * (c + i), valid);
    }
};

DEVICE void fetch_keys(Keys& k, const Planes& planes, const Walk w) {
    int g = threadIdx.x % WARP / 4, t = threadIdx.x % 4;
    KeySource keys(planes, w, g, t);
#pragma unroll
    for (int j = 0; j < 2; j++) {
        bool valid = !w.done() & w.seen(8 * j + g);
#pragma unroll
        for (int c = 0; c < CHUNKS; c++) keys.fetch(k.piece[j][c], j, c % 2, c / 2 * 2, valid);
    }
}

DEVICE void fetch_band(Raw (&piece)[4], int b, const Planes& planes, const Walk& w) {
    int g = this_thread() % WARP / 4, t = this_thread() % 4, n = band_values(b);
#pragma unroll
    for (int j = 0; j < 4; j++) {
        int k = 2 * t + j % 2, far = 8 * (j / 2);
        bool valid = !w.done() & w.seen(k + far);
        Source vals(planes.v, planes.v_scales, w.block, w.local + k, n * g);
        if (n == 8) vals.fetch<8>(piece[j], far, band_start(b), valid);
        if (n == 4) vals.fetch<4>(piece[j], far, band_start(b), valid);
        if (n == 2) vals.fetch<2>(piece[j], far, band_start(b), valid);
    }
}

DEVICE void fetch_vals(Vals& v, const Planes& planes, const Walk w) {
#pragma unroll
    for (int b = 0; b < BANDS; b++) fetch_band(v.piece[b], b, planes, w);
}

// Ask for a walk's keys and values as far as the L2 cache, since registers hold one page of it.
DEVICE void ask(const Planes& planes, const Walk& w) {
    constexpr int WIDTH = band_width<HD, KV>(), BANDS_OF_PAGE = HD / WIDTH;
    int lane = threadIdx.x % WARP, band = lane % BANDS_OF_PAGE;
    if (w.done()) return;
    i64 first = (i64)w.block * PAGE * HD + w.local * WIDTH;
    const u8* plane = lane < BANDS_OF_PAGE ? planes.k : planes.v;
    if (lane < 2 * BANDS_OF_PAGE)
        prefetch(plane + (first + band * PAGE * WIDTH) * value_bytes(KV),
                 KEYS * WIDTH * value_bytes(KV));
    if (KV == KV_Q8_0 && lane / 2 == 1)
        prefetch((lane == 2 ? planes.k_scales : planes.v_scales) + first / scale_group(HD),
                 KEYS * HD / scale_group(HD) * sizeof(f16));
}

// Take the key and value at `position`, if the walk begins with them, from where they lie packed.
DEVICE void take_own(Keys& k, Vals& v, const float* key, const float* value, const Walk& w,
                     int position) {
    int g = threadIdx.x % WARP / 4, t = threadIdx.x % 4;
    int offset = position - w.page * PAGE - w.local;
    if (w.done() || offset < 0 || offset >= KEYS) return;
#pragma unroll
    for (int j = 0; j < 2; j++)
#pragma unroll
        for (int c = 0; c < CHUNKS; c++) {
            if (8 * j + g != offset) continue;
            if (chunk_values(c) == 8)
                take<8>(k.piece[j][c], key, 32 * c + 8 * t);
            else
                take<4>(k.piece[j][c], key, 32 * c + 4 * t);
        }
#pragma unroll
    for (int b = 0; b < BANDS; b++)
#pragma unroll
        for (int j = 0; j < 4; j++) {
            if (8 * (j / 2) + 2 * t + j % 2 != offset) continue;
            int n = band_values(b), d = band_start(b) + n * g;
            if (n == 8) take<8>(v.piece[b][j], value, d);
            if (n == 4) take<4>(v.piece[b][j], value, d);
            if (n == 2) take<2>(v.piece[b][j], value, d);
        }
}
