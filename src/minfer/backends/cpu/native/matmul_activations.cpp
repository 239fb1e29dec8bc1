// Preparing activations: RMS norm, quantization and the interleaving of a tile (matmul_tiles.h).

#include <cstring>

#include "matmul_int8.h"
#include "matmul_tiles.h"
#include "simd.h"

namespace minfer::MINFER_ISA {

namespace {

// Quantization to 16 bits leaves room for hi = (a + 128) / 256 to fit a signed byte.
constexpr float kExactMax = 32500.0f;

// One normalised row, and what of it the quantization needs.
struct RowRange {
    float max;     // largest magnitude
    float poison;  // 0, or NaN if any element is NaN or infinite
};

RowRange normalise(const float* x, int64_t n_in, const float* weight, float eps, float* row) {
    const vf factor = set1(weight ? inverse_rms(x, n_in, eps) : 1.0f);
    vf most = set1(0.0f), poison = most;
    for (int64_t k = 0; k < n_in; k += kWidth) {
        const int n = n_in - k < kWidth ? int(n_in - k) : kWidth;
        vf y = n < kWidth ? load_n(x + k, n) : load(x + k);
        if (weight) y = y * factor * (n < kWidth ? load_n(weight + k, n) : load(weight + k));
        most = max(most, abs_(y));
        poison = fma(y, set1(0.0f), poison);
        if (n < kWidth) {
            store_n(row + k, y, n);
        } else {
            store(row + k, y);
        }
    }
    return {hmax(most), sum(poison)};
}

void prepare_exact(const float* row, const RowRange& range, int64_t n_in, int r, int rows,
                   uint8_t* tile) {
    const vf inverse = set1(range.max > 0 ? kExactMax / range.max : 0.0f);
    int32_t* sums = reinterpret_cast<int32_t*>(tile + n_in / 32 * 64 * rows) + 2 * r;
    uint8_t* data = tile + 64 * r;
    for (int64_t k = 0; k < n_in; k += 32, data += 64 * rows, sums += 2 * rows) {
        for (int half = 0; half < 2; ++half) {
            vi total = iset1(0);
            for (int i = 16 * half; i < 16 * (half + 1); i += kWidth) {
                const vi a = to_int(load(row + k + i) * inverse);
                store_exact(data, i, a);
                total = total + a;
            }
            sums[half] = sum(total);
        }
    }
    float* scales = reinterpret_cast<float*>(tile + n_in / 32 * (64 + 8) * rows);
    scales[r] = range.max / kExactMax + range.poison;
}

}  // namespace

void prepare_tile(Form form, const float* x, int64_t n_in, int rows, const float* norm_weight,
                  float norm_eps, uint8_t* tile, float* row) {
    if constexpr (kHasInt8) {
        if (is_int8(form)) {
            for (int r = 0; r < rows; r += kInt8Rows) {
                const int n = rows - r < kInt8Rows ? rows - r : kInt8Rows;
                prepare_int8(form, x + r * n_in, n_in, n, norm_weight, norm_eps, tile);
                tile += tile_bytes(form, n_in, kInt8Rows);
            }
            return;
        }
    }
    for (int r = 0; r < rows; ++r) {
        const RowRange range = normalise(x + r * n_in, n_in, norm_weight, norm_eps, row);
        if (form == Form::exact) {
            prepare_exact(row, range, n_in, r, rows, tile);
        } else {
            float* numbers = reinterpret_cast<float*>(tile) + r;
            for (int64_t k = 0; k < n_in; ++k) numbers[k * rows] = row[k];
        }
    }
}

}  // namespace minfer::MINFER_ISA
