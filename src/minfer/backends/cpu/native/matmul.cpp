// The two paths: prepare activations together, then share the panels of all products.

#include "matmul.h"

#include <optional>

#include "matmul_int8.h"
#include "matmul_tiles.h"
#include "simd.h"

namespace minfer::MINFER_ISA {

namespace {

using Choose = Form (*)(Format);

constexpr int kItemPanels = 2;  // panels a lane takes at a time when rows are many

// Where a call's scratch holds what: the tiles of each form in use, and room for every lane.
struct Scratch {
    int64_t tiles[kForms];  // offsets, -1 for forms not used
    int64_t rooms;
    int64_t room;  // bytes of a lane's
    int64_t bytes;

    Scratch(const MatMul& m, Choose choose, int64_t n_rows, int lanes)
        : room(round_up(4 * m.n_in, 64)), bytes(0) {
        for (int f = 0; f < kForms; ++f) tiles[f] = -1;
        for (int i = 0; i < m.n_products; ++i) {
            const Form form = choose(m.products[i].format);
            if (is_int8(form)) room = round_up(2 * expanded_bytes(m.n_in), 64);
            if (tiles[int(form)] >= 0) continue;
            tiles[int(form)] = bytes;
            bytes += tiles_bytes(form, m.n_in, n_rows);
        }
        rooms = bytes;
        bytes += lanes * room;
    }

    // Offset of the t-th tile of a form in use.
    int64_t tile(Form form, int64_t t, int64_t n_in) const {
        return tiles[int(form)] + t * tile_bytes(form, n_in, kTileRows);
    }
};

// Prepare rows [first, first + rows) in every form in use.
void prepare(const MatMul& m, const Scratch& scratch, int64_t first, int64_t rows,
             const Lane& lane) {
    float* room = reinterpret_cast<float*>(m.scratch + scratch.rooms + lane.index * scratch.room);
    const Range share = lane.share((rows + kTileRows - 1) / kTileRows);
    for (int f = 0; f < kForms; ++f) {
        if (scratch.tiles[f] < 0) continue;
        for (int64_t t = share.begin; t < share.end; ++t) {
            const int64_t left = rows - t * kTileRows;
            prepare_tile(Form(f), m.x + (first + t * kTileRows) * m.n_in, m.n_in,
                         int(left < kTileRows ? left : kTileRows), m.norm_weight, m.norm_eps,
                         m.scratch + scratch.tile(Form(f), t, m.n_in), room);
        }
    }
}

struct Tile {
    static constexpr int kColumns = kItemPanels * kPanel;
    alignas(64) float y[kTileRows][kColumns];
};

// Write a tile's results: y = [act(gate) *] tile + residual.
void finish(const Product& p, Gate gate, int64_t row, int rows, int64_t column, int columns,
            const Tile& tile, const Tile& gates) {
    for (int r = 0; r < rows; ++r) {
        for (int i = 0; i < columns; i += kWidth) {
            const int n = columns - i < kWidth ? columns - i : kWidth;
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

// Some neighbouring panels of one product: what is the same for all rows, found once.
class PanelProduct {
public:
    // `room` takes the expanded weights of the forms that need them.
    PanelProduct(const MatMul& m, Choose choose, const Scratch& scratch, const Product& p,
                 int64_t panel, int panels, uint8_t* room)
        : n_in_(m.n_in),
          format_(p.format),
          form_(choose(p.format)),
          tiles_(m.scratch + scratch.tile(form_, 0, m.n_in)),
          stride_(panel_bytes(p.format, m.n_in)),
          weights_(p.packed + panel * stride_),
          panels_(panels),
          columns_(int(p.n_out - panel * kPanel < panels * kPanel ? p.n_out - panel * kPanel
                                                                  : panels * kPanel)),
          bias_(p.bias ? p.bias + panel * kPanel : nullptr) {
        if constexpr (kHasInt8) {
            if (is_int8(form_)) {
                expand_pair(format_, n_in_, weights_, stride_, panels, room);
                weights_ = room;
            }
        }
    }

    int columns() const { return columns_; }

    void run(int64_t t, int rows, Tile& out) const {
        const uint8_t* tile = tiles_ + t * tile_bytes(form_, n_in_, kTileRows);
        if (is_int8(form_)) {
            run_int8(tile, rows, out);
        } else {
            const TileKernel kernel = form_ == Form::exact ? exact_kernel(format_, rows)
                                                           : numbers_kernel(format_, rows);
            for (int i = 0; i < panels_; ++i) {
                kernel(weights_ + i * stride_, n_in_, tile, out.y[0] + i * kPanel, Tile::kColumns);
            }
        }
        for (int r = 0; bias_ && r < rows; ++r) {
            for (int c = 0; c < columns_; ++c) out.y[r][c] += bias_[c];
        }
    }

private:
    void run_int8(const uint8_t* tile, int rows, Tile& out) const {
        if constexpr (kHasInt8) {
            for (int r = 0; r < rows; r += kInt8Rows) {
                multiply_int8(format_, n_in_, weights_, tile, out.y[r], Tile::kColumns);
                tile += tile_bytes(form_, n_in_, kInt8Rows);
            }
        }
    }

    int64_t n_in_;
    Format format_;
    Form form_;
    const uint8_t* tiles_;
    int64_t stride_;
    const uint8_t* weights_;
    int panels_;
    int columns_;
    const float* bias_;
};

// All products over prepared rows. Items of `width` panels of all products are one list, shared by
// the lanes; for each item, every row tile: weights stay in the first caches while activations
// stream by.
void multiply(const MatMul& m, Choose choose, int width, const Scratch& scratch, int64_t first,
              int64_t rows, const Lane& lane) {
    const bool gated = m.gate != Gate::none;
    uint8_t* room = m.scratch + scratch.rooms + lane.index * scratch.room;
    const auto items = [&](const Product& p) { return (panel_count(p.n_out) + width - 1) / width; };
    int64_t total = 0;
    for (int i = gated; i < m.n_products; ++i) total += items(m.products[i]);
    Range share = lane.share(total);
    for (int i = gated; i < m.n_products; ++i) {
        const Product& p = m.products[i];
        const int64_t end = share.end < items(p) ? share.end : items(p);
        for (int64_t item = share.begin > 0 ? share.begin : 0; item < end; ++item) {
            const int64_t panel = item * width;
            const int64_t left = panel_count(p.n_out) - panel;
            const int panels = left < width ? int(left) : width;
            const PanelProduct product(m, choose, scratch, p, panel, panels, room);
            std::optional<PanelProduct> gate;
            if (gated) {
                gate.emplace(m, choose, scratch, m.products[0], panel, panels,
                             room + expanded_bytes(m.n_in));
            }
            for (int64_t row = 0; row < rows; row += kTileRows) {
                const int n = rows - row < kTileRows ? int(rows - row) : kTileRows;
                Tile tile, gates;
                if (gate) gate->run(row / kTileRows, n, gates);
                product.run(row / kTileRows, n, tile);
                finish(p, m.gate, first + row, n, panel * kPanel, product.columns(), tile, gates);
            }
        }
        share = {share.begin - items(p), share.end - items(p)};
    }
}

void matmul(const MatMul& m, Choose choose, int width, int64_t first, int64_t rows,
            const Lane& lane) {
    const Scratch scratch(m, choose, rows, lane.count);
    prepare(m, scratch, first, rows, lane);
    lane.sync();
    multiply(m, choose, width, scratch, first, rows, lane);
}

}  // namespace

size_t single_scratch_bytes(const MatMul& m, int64_t rows, int lanes) {
    return size_t(Scratch(m, single_form, rows, lanes).bytes);
}

size_t many_scratch_bytes(const MatMul& m, int64_t rows, int lanes) {
    return size_t(Scratch(m, many_form, rows, lanes).bytes);
}

void matmul_single(const MatMul& m, int64_t first, int64_t rows, const Lane& lane) {
    matmul(m, single_form, 1, first, rows, lane);
}

void matmul_many(const MatMul& m, int64_t first, int64_t rows, const Lane& lane) {
    matmul(m, many_form, kItemPanels, first, rows, lane);
}

}  // namespace minfer::MINFER_ISA
