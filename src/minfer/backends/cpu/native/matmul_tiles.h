// Tiles: a few rows of prepared activations. What the matmul files share; not a door.
//
// Activations are prepared once for a product and read by every panel. Their form depends on the
// weights and the path, `single_form` and `many_form`:
//
//   numbers      f32, for weights that are plain numbers
//   exact        16-bit integers with one scale a row
//   rotated, wide  8-bit integers with a scale every 32 inputs, see matmul_int8.h
//
// A tile holds up to kTileRows rows, interleaved so that a kernel walks it with one pointer:
//
//   numbers  [n_in][rows] f32
//   exact    [n_in / 32][rows][64] bytes (`store_exact`), then [n_in / 32][rows][2] int32 sums of
//            16 inputs, then [rows] f32 scales
//   others   for each 4 rows: [n_in / 32] blocks
#pragma once

#include <cstddef>
#include <cstdint>

#include "matmul.h"
#include "matmul_layout.h"
#include "simd.h"

namespace minfer::MINFER_ISA {

enum class Form : int32_t { numbers, exact, rotated16, rotated8, rotated4, wide };
constexpr int kForms = 6;

// Whether this instruction set has the 8-bit path (matmul_int8.h).
#if defined(MINFER_ISA_avx512)
constexpr bool kHasInt8 = true;
#else
constexpr bool kHasInt8 = false;
#endif
constexpr bool is_int8(Form form) { return form >= Form::rotated16; }

// The arithmetic of the path for single rows.
constexpr Form single_form(Format format) {
    return is_quantized(format) ? Form::exact : Form::numbers;
}

// The arithmetic of the path for many rows. With VNNI 8 bits are twice as fast as 16; without it
// nothing beats 16-bit products, which are exact.
constexpr Form many_form(Format format) {
    const Traits t = traits(format);
    if (!kHasInt8 || t.group == 0) return single_form(format);
    if (t.bits == 8 || t.codes == Codes::iq4) return Form::wide;
    if (t.codes == Codes::fp4 || t.bits == 5) return Form::rotated8;
    return t.bits == 6 ? Form::rotated4 : Form::rotated16;
}

// Rows of a full tile: as many as the registers hold. The last tile of a product may have fewer.
constexpr int kTileRows = kWidth == 16 ? 8 : 4;

constexpr int64_t round_up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

// Bytes of a tile of `rows` rows, and of the tiles of any number of rows.
constexpr int64_t tile_bytes(Form form, int64_t n_in, int64_t rows) {
    switch (form) {
        case Form::numbers: return round_up(4 * n_in * rows, 64);
        case Form::exact: return round_up((n_in / 32 * (64 + 8) + 4) * rows, 64);
        case Form::wide: return round_up(n_in / 32 * 336, 64) * ((rows + 3) / 4);
        default: return round_up(n_in / 32 * 208, 64) * ((rows + 3) / 4);
    }
}
constexpr int64_t tiles_bytes(Form form, int64_t n_in, int64_t rows) {
    return rows / kTileRows * tile_bytes(form, n_in, kTileRows) +
           tile_bytes(form, n_in, rows % kTileRows);
}

// How far ahead of its reading a panel that comes from memory is asked for, bytes. With several
// rows the processor's own prefetcher falls behind: on Zen 5, 8 rows of Q4_1 stream at 15 GB/s with
// this and at 7 without. Panels in the caches are left alone (0): it would push out activations.
constexpr int64_t kAhead = 12288;

MINFER_FN void prefetch(const uint8_t* from, int bytes) {
    for (int i = 0; i < bytes; i += 64) __builtin_prefetch(from + i);
}

struct ExactTile {
    const uint8_t* data;
    const int32_t* sums;
    const float* scales;

    MINFER_FN ExactTile(const uint8_t* tile, int64_t n_in, int rows)
        : data(tile),
          sums(reinterpret_cast<const int32_t*>(tile + n_in / 32 * 64 * rows)),
          scales(reinterpret_cast<const float*>(sums + n_in / 32 * 2 * rows)) {}
};

// Prepare the tile of rows [0, rows) of x, normalised first if `norm_weight` is given. `row` is
// room for n_in floats.
void prepare_tile(Form form, const float* x, int64_t n_in, int rows, const float* norm_weight,
                  float norm_eps, uint8_t* tile, float* row);

// out[r * stride + c] = the product of row r and column c of the panel; prefetches `ahead` bytes.
using TileKernel = void (*)(const uint8_t* panel, int64_t ahead, int64_t n_in, const uint8_t* tile,
                            float* out, int64_t stride);

// Kernels for tiles of 1 <= rows <= kTileRows rows.
TileKernel exact_kernel(Format format, int rows);
TileKernel numbers_kernel(Format format, int rows);

// The exact form for many rows where there is no int8 path: the same results from a panel expanded
// once for all row tiles (64-byte aligned).
int64_t expanded_exact_bytes(int64_t n_in);
void expand_exact(Format format, int64_t n_in, const uint8_t* panel, uint8_t* expanded);
void multiply_expanded(Format format, int64_t n_in, const uint8_t* expanded, const uint8_t* tile,
                       int rows, float* out, int64_t stride);

// The kernel for `rows` rows among K<1>::run, ..., K<kTileRows>::run.
template <template <int> typename K>
TileKernel kernel_of(int rows) {
    static_assert(kTileRows == 4 || kTileRows == 8);
    if constexpr (kTileRows == 8) {
        static constexpr TileKernel kernels[] = {K<1>::run, K<2>::run, K<3>::run, K<4>::run,
                                                 K<5>::run, K<6>::run, K<7>::run, K<8>::run};
        return kernels[rows - 1];
    } else {
        static constexpr TileKernel kernels[] = {K<1>::run, K<2>::run, K<3>::run, K<4>::run};
        return kernels[rows - 1];
    }
}

}  // namespace minfer::MINFER_ISA
