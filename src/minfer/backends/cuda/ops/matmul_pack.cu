// Repacks a weight matrix from its GGUF bytes into the planes of `lib/quant.cuh`, once, at load.
//
// What: matmul_pack_rows finds each row's power of two; matmul_pack writes the blocks.
// Layouts: source [n_rows][row bytes] as the file has it; target [tile][block]; factor f32
//   [tiles*16] is what a row's outputs are multiplied by: 2^-e of the row, times 2^ACT_SHIFT of the
//   activations. Row h*8 + g of tile i is source row i*rows_a_tile + (h - first_half)*8 + g: a lone
//   matrix fills both halves (rows_a_tile 16, first_half 0), a pair (gate, up) fills one half each
//   (8; 0 and 1). Rows past n_rows and weights past n_cols are zero.
// Who: rows: a warp a row. pack: a thread a strip of 32 weights of one row; grid.y is the tile.
// Floor: reads the file's bytes, writes as many: 4.7 GB take about 3 ms at 3 TB/s. Byte loads make
//   it arithmetic-bound instead; loading is bound by the copy to the device all the same.
// Limits: n_cols a multiple of the type's block.
// Numerics: exact but for d and dmin, which are halves times a power of two and stay exact unless
//   they lie 2^10 below the row's largest; plain rows are rounded to half after normalising.
// Versions: 1 (2026-11) one thread a strip.
#include "lib/act.cuh"
#include "lib/quant_gguf.cuh"

#ifndef TYPE
#define TYPE Q4_K
#endif

// The largest |scale| or |minimum| / 16 of a row; of a plain row, |weight| / 512.
template <class F, class G = Gguf<F>>
DEVICE float row_bound(const u8* row, int n_cols, int lane) {
    float bound = 0.0f;
    if constexpr (F::SCALES == Scales::NONE) {
        for (int i = lane; i < n_cols; i += WARP)
            bound = fmaxf(bound, fabsf(G::value(row + i * G::BYTES)) * 0x1p-9f);
    } else {
        for (int i = lane; i < n_cols / F::GROUP; i += WARP) {
            const u8* b = row + (u64)(i * F::GROUP / G::ITEMS) * G::BYTES;
            int group = i % (G::ITEMS / F::GROUP);
            bound = fmaxf(bound, fabsf(G::scale(b, group)));
            bound = fmaxf(bound, fabsf(G::minimum(b, group)) * 0x1p-4f);
        }
    }
    return warp_max(bound);
}

KERNEL matmul_pack_rows(const u8* source, float* factor, int n_rows, int n_cols, int n_tiles,
                        int rows_a_tile, int first_half) {
    using G = Gguf<TYPE>;
    int row = blockIdx.x * (blockDim.x / WARP) + threadIdx.x / WARP;
    int lane = threadIdx.x % WARP;
    pdl_launch();
    pdl_wait();
    if (row >= n_tiles * rows_a_tile) return;
    float bound = 0.0f;
    if (row < n_rows)
        bound = row_bound<TYPE>(source + (u64)row * (n_cols / G::ITEMS) * G::BYTES, n_cols, lane);
    if (lane == 0) {
        // bound = 1.x * 2^exponent becomes 1.x * 2^-10
        int exponent = bound > 0.0f ? (int)(__float_as_uint(bound) >> 23) - 127 : -10;
        int e = max(-100, min(100, -10 - exponent));
        int target = row / rows_a_tile * 16 + first_half * 8 + row % rows_a_tile;
        factor[target] = __uint_as_float((u32)(127 - e + ACT_SHIFT) << 23);
    }
}

// Writes the part of `block` that strip s of row half h, lane (g, t), has: weights k0..k0+31 of the
// GGUF row `at`, or zeros. `power` is the row's 2^e.
template <class F, class P = Packed<F>, class G = Gguf<F>>
DEVICE void pack_strip(u8* block, const u8* at, bool real, int k0, int n_cols, float power, int s,
                       int h, int lane) {
    int g = lane / 4, t = lane % 4;
    if constexpr (F::SCALES == Scales::NONE) {
        u32* out = (u32*)block + (s * 2 + h) * 512;
#pragma unroll
        for (int i = 0; i < 16; i++) {
            float a = real && k0 + 2 * i < n_cols ? G::value(at + (k0 + 2 * i) * G::BYTES) : 0.0f;
            float b = real && k0 + 2 * i + 1 < n_cols
                          ? G::value(at + (k0 + 2 * i + 1) * G::BYTES)
                          : 0.0f;
            out[(i / 4 * 32 + lane) * 4 + i % 4] = pack_f16(a * power, b * power);
        }
    } else {
        const u8* b = at + (u64)(k0 / G::ITEMS) * G::BYTES;
        int first = k0 % G::ITEMS;
        u32 q[32];
#pragma unroll
        for (int i = 0; i < 32; i++) {
            q[i] = real ? G::code(b, first + i) : 0;
            if constexpr (F::TABLE) q[i] = packed_code<F>(q[i]);
        }

        if constexpr (F::MAIN == 8) {
#pragma unroll
            for (int j = 0; j < 8; j++) {
                int i = j / 2 * 8 + j % 2 * 2;
                ((u32*)block)[(((s * 2 + h) * 2 + j / 4) * 32 + lane) * 4 + j % 4] =
                    q[i] | q[i + 4] << 8 | q[i + 1] << 16 | q[i + 5] << 24;
            }
        }
        if constexpr (F::MAIN == 4) {
#pragma unroll
            for (int J = 0; J < 4; J++) {
                u32 word = 0;
#pragma unroll
                for (int i = 0; i < 8; i++) {
                    // place of weight i: pairs in nibbles i, i + 4; of levels 0 4 1 5 2 6 3 7
                    int place = F::TABLE ? i % 4 * 2 + i / 4 : i / 2 + i % 2 * 4;
                    word |= (q[8 * J + i] & 15) << (4 * place);
                }
                ((u32*)block)[((s * 2 + h) * 32 + lane) * 4 + J] = word;
            }
        }
        if constexpr (F::MAIN == 3) {
            u32 words[4] = {};
#pragma unroll
            for (int i = 0; i < 32; i++)
                words[i / 8] |= q[i] << (8 * (2 * (i & 1) + i % 8 / 4) + 3 * (i / 2 & 1) + 2);
            words[0] |= words[3] >> 2 & 0x03030303u;
            words[1] |= words[3] >> 4 & 0x03030303u;
            words[2] |= words[3] >> 6 & 0x03030303u;
#pragma unroll
            for (int i = 0; i < 3; i++)
                ((u32*)block)[((s * 3 + i) * 32 + lane) * 2 + h] = words[i];
        }
        if constexpr (F::MAIN == 2) {
            u32 words[2] = {};
#pragma unroll
            for (int i = 0; i < 32; i++)
                words[i / 16] |= q[i] << (8 * (2 * (i & 1) + i % 8 / 4) + 4 * (i / 2 & 1) +
                                          2 * (i / 8 & 1));
            *((uint2*)block + (s * 32 + lane) * 2 + h) = make_uint2(words[0], words[1]);
        }
        if constexpr (F::EXTRA == 2) {
            u32* out = (u32*)(block + P::EXTRA_AT) + ((s * 32 + lane) * 2 + h) * 2;
#pragma unroll
            for (int H = 0; H < 2; H++) {
                u32 word = 0;
#pragma unroll
                for (int i = 0; i < 16; i++)
                    word |= (q[16 * H + i] >> 4)
                            << (crumb_at(i / 8, i / 2 & 1) + 8 * (i / 4 & 1) + 16 * (i & 1));
                out[H] = word;
            }
        }
        if constexpr (F::EXTRA == 1) {
            u32 word = 0;
#pragma unroll
            for (int i = 0; i < 32; i++)
                word |= (q[i] >> 4)
                        << (bit_at(i / 8, i / 2 & 1) + 8 * (i / 4 & 1) + 16 * (i & 1));
            ((u32*)(block + P::EXTRA_AT))[(s * 32 + lane) * 2 + h] = word;
        }

        u8* steps = block + P::STEP_AT;
        float scale_power = power * (float)(1 << P::EXPONENT);
        int group = first / F::GROUP;
        if constexpr (F::SCALES == Scales::HALF) {
            ((f16*)steps)[(s * 32 + lane) * 2 + h] =
                f32_to_f16(real ? G::scale(b, group) * scale_power : 0.0f);
        } else if constexpr (F::SCALES == Scales::HALF_MIN) {
            f16* out = (f16*)steps + ((s * 32 + lane) * 2 + h) * 2;
            out[0] = f32_to_f16(real ? G::scale(b, group) * scale_power : 0.0f);
            out[1] = f32_to_f16(real ? G::minimum(b, group) * power : 0.0f);
        } else if constexpr (F::SCALES == Scales::STEP && F::GROUP == 32) {
            steps[(lane * 2 + s) * 2 + h] = real ? G::step(b, group) : 128;
        } else if constexpr (F::SCALES == Scales::STEP) {
            u8* out = steps + (s * 32 + lane) * 4 + h * 2;
            out[0] = real ? G::step(b, group) : 128;
            out[1] = real ? G::step(b, group + 1) : 128;
        } else if constexpr (F::GROUP == 32) {
            u8* out = steps + (s * 32 + lane) * 4 + h * 2;
            out[0] = real ? G::step(b, group) : 0;
            out[1] = real ? G::min_step(b, group) : 0;
        } else {
            u8* out = steps + (s * 32 + lane) * 4 + h * 2;
            out[0] = real ? G::step(b, group) | G::min_step(b, group) << 4 : 0;
            out[1] = real ? G::step(b, group + 1) | G::min_step(b, group + 1) << 4 : 0;
        }
        if constexpr (F::SCALES == Scales::STEP || F::SCALES == Scales::STEP_MIN) {
            if (s == 0 && t == 0) {
                f16* d = (f16*)(block + P::D_AT);
                f16 scaled = f32_to_f16(real ? G::d(b) * scale_power : 0.0f);
                if constexpr (F::SCALES == Scales::STEP) {
                    d[g * 2 + h] = scaled;
                } else {
                    d[(g * 2 + h) * 2] = scaled;
                    d[(g * 2 + h) * 2 + 1] =
                        f32_to_f16(real ? -G::dmin(b) * power * (float)(1 << MIN_EXPONENT) : 0.0f);
                }
            }
        }
    }
}

KERNEL matmul_pack(const u8* source, const float* factor, u8* target, int n_rows, int n_cols,
                   int n_blocks, int rows_a_tile, int first_half, int n_halves) {
    using P = Packed<TYPE>;
    using G = Gguf<TYPE>;
    pdl_launch();
    pdl_wait();
    int index = blockIdx.x * blockDim.x + threadIdx.x;  // [block][strip][half][lane]
    int lane = index % WARP, h = first_half + index / WARP % n_halves;
    int strip = index / WARP / n_halves;
    int kb = strip / P::STRIPS, s = strip % P::STRIPS;
    int tile = blockIdx.y;
    if (kb >= n_blocks) return;
    int row = tile * rows_a_tile + (h - first_half) * 8 + lane / 4;
    int k0 = strip * 128 + lane % 4 * 32;
    bool real = row < n_rows && k0 < n_cols;
    float power = 1.0f / factor[tile * 16 + h * 8 + lane / 4] * (float)(1 << ACT_SHIFT);
    pack_strip<TYPE>(target + ((u64)tile * n_blocks + kb) * P::BYTES,
                     source + (u64)(real ? row : 0) * (n_cols / G::ITEMS) * G::BYTES, real, k0,
                     n_cols, power, s, h, lane);
}
