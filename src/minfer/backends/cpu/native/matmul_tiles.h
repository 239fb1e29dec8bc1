// Tiles: a few rows of prepared activations times one panel. What the matmul files share; not a door.
//
// Activations are prepared once for a product and read by every panel. Their form depends on the
// weights:
//
//   numbers  f32, for weights that are plain numbers
//   exact    16-bit integers with one scale a row
//
// A tile holds `rows` rows, interleaved so that a kernel walks it with one pointer:
//
//   numbers  [n_in][rows] f32
//   exact    [n_in / 32][rows][64] bytes (`store_exact`), then [n_in / 32][rows][2] int32 sums of
//            16 inputs, then [rows] f32 scales
#pragma once

#include <cstddef>
#include <cstdint>

#include "matmul.h"
#include "matmul_layout.h"
#include "simd.h"

namespace minfer::MINFER_ISA {

enum class Form : int32_t { numbers, exact };
constexpr int kForms = 2;

// Rows of a full tile: as many as the registers hold. The last tile of a product may have fewer.
constexpr int kTileRows = kWidth == 16 ? 8 : 4;

constexpr int64_t round_up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

// Bytes of a tile of `rows` rows, and of the tiles of any number of rows.
constexpr int64_t tile_bytes(Form form, int64_t n_in, int64_t rows) {
    const int64_t row = form == Form::numbers ? 4 * n_in : n_in / 32 * (64 + 8) + 4;
    return round_up(row * rows, 64);
}
constexpr int64_t tiles_bytes(Form form, int64_t n_in, int64_t rows) {
    return rows / kTileRows * tile_bytes(form, n_in, kTileRows) +
           tile_bytes(form, n_in, rows % kTileRows);
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

// out[r][c] = the product of row r and column c of the panel.
using TileKernel = void (*)(const uint8_t* panel, int64_t n_in, const uint8_t* tile,
                            float (*out)[kPanel]);

// Kernels for tiles of 1 <= rows <= kTileRows rows.
TileKernel exact_kernel(Format format, int rows);
TileKernel numbers_kernel(Format format, int rows);

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
