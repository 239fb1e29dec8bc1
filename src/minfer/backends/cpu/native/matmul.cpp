// The two paths: prepare activations together, then share the panels of all products.

#include "matmul.h"

#include "matmul_tiles.h"
#include "simd.h"

namespace minfer::MINFER_ISA {

namespace {

// Choice of arithmetic, in one place.
Form single_form(Format format) {
    return is_quantized(format) ? Form::exact : Form::numbers;
}
Form many_form(Format format) { return single_form(format); }

using Choose = Form (*)(Format);

// Where a call's scratch holds what: the tiles of each form in use, and a row for every lane.
struct Scratch {
    int64_t tiles[kForms];  // offsets, -1 for forms not used
    int64_t rows;
    int64_t bytes;

    Scratch(const MatMul& m, Choose choose, int64_t n_rows, int lanes) : bytes(0) {
        for (int f = 0; f < kForms; ++f) tiles[f] = -1;
        for (int i = 0; i < m.n_products; ++i) {
            int64_t& offset = tiles[int(choose(m.products[i].format))];
            if (offset >= 0) continue;
            offset = bytes;
            bytes += tiles_bytes(choose(m.products[i].format), m.n_in, n_rows);
        }
        rows = bytes;
        bytes += lanes * row_bytes(m.n_in);
    }

    static int64_t row_bytes(int64_t n_in) { return round_up(4 * n_in, 64); }

    // Offset of the t-th tile of a form in use.
    int64_t tile(Form form, int64_t t, int64_t n_in) const {
        return tiles[int(form)] + t * tile_bytes(form, n_in, kTileRows);
    }
};

// Prepare rows [first, first + rows) in every form in use.
void prepare(const MatMul& m, const Scratch& scratch, int64_t first, int64_t rows,
             const Lane& lane) {
    float* row = reinterpret_cast<float*>(m.scratch + scratch.rows +
                                          lane.index * Scratch::row_bytes(m.n_in));
    const Range share = lane.share((rows + kTileRows - 1) / kTileRows);
    for (int f = 0; f < kForms; ++f) {
        if (scratch.tiles[f] < 0) continue;
        for (int64_t t = share.begin; t < share.end; ++t) {
            const int64_t left = rows - t * kTileRows;
            prepare_tile(Form(f), m.x + (first + t * kTileRows) * m.n_in, m.n_in,
                         int(left < kTileRows ? left : kTileRows), m.norm_weight, m.norm_eps,
                         m.scratch + scratch.tile(Form(f), t, m.n_in), row);
        }
    }
}

struct Tile {
    alignas(64) float y[kTileRows][kPanel];

    MINFER_FN void add_bias(const float* bias, int rows, int columns) {
        for (int r = 0; bias && r < rows; ++r) {
            for (int c = 0; c < columns; ++c) y[r][c] += bias[c];
        }
    }
};

// Write a tile's results: y = [act(gate) *] tile + residual.
void finish(const Product& p, Gate gate, int64_t row, int rows, int64_t column, const Tile& tile,
            const Tile& gates) {
    for (int r = 0; r < rows; ++r) {
        for (int i = 0; i < kPanel; i += kWidth) {
            const int64_t left = p.n_out - column - i;
            if (left <= 0) break;
            const int n = left < kWidth ? int(left) : kWidth;
            const int64_t at = (row + r) * p.n_out + column + i;
            vf y = load(tile.y[r] + i);
            if (gate == Gate::silu) y = silu(load(gates.y[r] + i)) * y;
            if (gate == Gate::gelu) y = gelu(load(gates.y[r] + i)) * y;
            if (n == kWidth) {
                if (p.residual) y = y + load(p.residual + at);
                store(p.out + at, y);
            } else {
                if (p.residual) y = y + load_n(p.residual + at, n);
                store_n(p.out + at, y, n);
            }
        }
    }
}

// One panel of one product, for all rows. Constant over the rows, so looked up once.
class PanelProduct {
public:
    PanelProduct(const MatMul& m, Choose choose, const Scratch& scratch, const Product& p,
                 int64_t panel)
        : n_in_(m.n_in),
          form_(choose(p.format)),
          tiles_(m.scratch + scratch.tile(form_, 0, m.n_in)),
          weights_(p.packed + panel * panel_bytes(p.format, m.n_in)),
          format_(p.format),
          bias_(p.bias ? p.bias + panel * kPanel : nullptr),
          columns_(int(p.n_out - panel * kPanel < kPanel ? p.n_out - panel * kPanel : kPanel)) {}

    void run(int64_t t, int rows, Tile& out) const {
        const uint8_t* tile = tiles_ + t * tile_bytes(form_, n_in_, kTileRows);
        const TileKernel kernel = form_ == Form::exact ? exact_kernel(format_, rows)
                                                       : numbers_kernel(format_, rows);
        kernel(weights_, n_in_, tile, out.y);
        out.add_bias(bias_, rows, columns_);
    }

private:
    int64_t n_in_;
    Form form_;
    const uint8_t* tiles_;
    const uint8_t* weights_;
    Format format_;
    const float* bias_;
    int columns_;
};

// All products over prepared rows. Panels of all products are one list, shared by the lanes; for
// each panel, every row tile: the panel stays in the first caches while activations stream by.
void multiply(const MatMul& m, Choose choose, const Scratch& scratch, int64_t first, int64_t rows,
              const Lane& lane) {
    const bool gated = m.gate != Gate::none;
    int64_t total = 0;
    for (int i = gated; i < m.n_products; ++i) total += panel_count(m.products[i].n_out);
    const Range share = lane.share(total);
    int64_t begin = 0;
    for (int i = gated; i < m.n_products; ++i) {
        const Product& p = m.products[i];
        const int64_t panels = panel_count(p.n_out);
        for (int64_t panel = 0; panel < panels; ++panel) {
            if (begin + panel < share.begin || begin + panel >= share.end) continue;
            const PanelProduct product(m, choose, scratch, p, panel);
            const PanelProduct gate(m, choose, scratch, m.products[0], panel);
            for (int64_t row = 0; row < rows; row += kTileRows) {
                const int n = rows - row < kTileRows ? int(rows - row) : kTileRows;
                Tile tile, gates;
                if (gated) gate.run(row / kTileRows, n, gates);
                product.run(row / kTileRows, n, tile);
                finish(p, m.gate, first + row, n, panel * kPanel, tile, gates);
            }
        }
        begin += panels;
    }
}

void matmul(const MatMul& m, Choose choose, int64_t first, int64_t rows, const Lane& lane) {
    const Scratch scratch(m, choose, rows, lane.count);
    prepare(m, scratch, first, rows, lane);
    lane.sync();
    multiply(m, choose, scratch, first, rows, lane);
}

}  // namespace

size_t single_scratch_bytes(const MatMul& m, int64_t rows, int lanes) {
    return size_t(Scratch(m, single_form, rows, lanes).bytes);
}

size_t many_scratch_bytes(const MatMul& m, int64_t rows, int lanes) {
    return size_t(Scratch(m, many_form, rows, lanes).bytes);
}

void matmul_single(const MatMul& m, int64_t first, int64_t rows, const Lane& lane) {
    matmul(m, single_form, first, rows, lane);
}

void matmul_many(const MatMul& m, int64_t first, int64_t rows, const Lane& lane) {
    matmul(m, many_form, first, rows, lane);
}

}  // namespace minfer::MINFER_ISA
