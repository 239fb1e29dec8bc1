// The two paths: prepare activations together, then share the panels of all products.
//
// Single rows: each lane takes a contiguous range of panels, so that it streams one piece of
// memory.
// Many rows: lanes take items from a common counter, so that one that is held up (another process
// on its core) leaves its work to the others.

#include "matmul.h"

#include <atomic>
#include <optional>

#include "matmul_int8.h"
#include "matmul_tiles.h"
#include "simd.h"

namespace minfer::MINFER_ISA {

namespace {

// What sets the two paths apart.
struct Path {
    Form (*form)(Format);
    int panels;   // a lane takes at a time
    bool shared;  // items come from a common counter
};

constexpr Path kSingle{single_form, 1, false};
constexpr Path kMany{many_form, 2, true};
constexpr int kMaxPanels = 2;

// Whether a product expands its panels first: always for the int8 forms, and in the path for many
// rows where that takes less than it saves.
constexpr int64_t kExpandRows = 16;
constexpr bool expands(const Path& path, Form form) {
    return is_int8(form) || (!kHasInt8 && path.shared && form == Form::exact);
}

// Bytes of the expanded panels of one product.
int64_t product_room(const Path& path, Form form, int64_t n_in) {
    if (!expands(path, form)) return 0;
    if constexpr (kHasInt8) {
        return round_up(expanded_bytes(n_in), 64);
    } else {
        return path.panels * round_up(expanded_exact_bytes(n_in), 64);
    }
}

// Where a call's scratch holds what: the counter of items, the tiles of each form in use, and room
// for every lane.
struct Scratch {
    static constexpr int64_t kCounter = 64;
    int64_t tiles[kForms];  // offsets, -1 for forms not used
    int64_t rooms;
    int64_t room;  // bytes of a lane's
    int64_t bytes;

    Scratch(const MatMul& m, const Path& path, int64_t n_rows, int lanes)
        : room(round_up(4 * m.n_in, 64)), bytes(kCounter) {
        for (int f = 0; f < kForms; ++f) tiles[f] = -1;
        for (int i = 0; i < m.n_products; ++i) {
            const Form form = path.form(m.products[i].format);
            const int64_t expanded = 2 * product_room(path, form, m.n_in);
            if (expanded > room) room = expanded;
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
    static constexpr int kColumns = kMaxPanels * kPanel;
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
    PanelProduct(const MatMul& m, const Path& path, const Scratch& scratch, const Product& p,
                 int64_t panel, int panels, int64_t rows, uint8_t* room)
        : n_in_(m.n_in),
          format_(p.format),
          form_(path.form(p.format)),
          tiles_(m.scratch + scratch.tile(form_, 0, m.n_in)),
          stride_(panel_bytes(p.format, m.n_in)),
          weights_(p.packed + panel * stride_),
          panels_(panels),
          columns_(int(p.n_out - panel * kPanel < panels * kPanel ? p.n_out - panel * kPanel
                                                                  : panels * kPanel)),
          bias_(p.bias ? p.bias + panel * kPanel : nullptr),
          expanded_(expands(path, form_) && (is_int8(form_) || rows >= kExpandRows)) {
        if (!expanded_) return;
        if constexpr (kHasInt8) {
            expand_pair(format_, n_in_, weights_, stride_, panels, room);
        } else {
            const int64_t stride = round_up(expanded_exact_bytes(n_in_), 64);
            for (int i = 0; i < panels; ++i) {
                expand_exact(format_, n_in_, weights_ + i * stride_, room + i * stride);
            }
            stride_ = stride;
        }
        weights_ = room;
    }

    int columns() const { return columns_; }

    void run(int64_t t, int rows, Tile& out) const {
        const uint8_t* tile = tiles_ + t * tile_bytes(form_, n_in_, kTileRows);
        if (expanded_) {
            run_expanded(tile, rows, out);
        } else {
            const TileKernel kernel = form_ == Form::exact ? exact_kernel(format_, rows)
                                                           : numbers_kernel(format_, rows);
            const int64_t ahead = t == 0 ? kAhead : 0;  // the first tile finds the panel in memory
            for (int i = 0; i < panels_; ++i) {
                kernel(weights_ + i * stride_, ahead, n_in_, tile, out.y[0] + i * kPanel,
                       Tile::kColumns);
            }
        }
        for (int r = 0; bias_ && r < rows; ++r) {
            for (int c = 0; c < columns_; ++c) out.y[r][c] += bias_[c];
        }
    }

private:
    void run_expanded(const uint8_t* tile, int rows, Tile& out) const {
        if constexpr (kHasInt8) {
            for (int r = 0; r < rows; r += kInt8Rows) {
                multiply_int8(format_, n_in_, weights_, tile, out.y[r], Tile::kColumns);
                tile += tile_bytes(form_, n_in_, kInt8Rows);
            }
        } else {
            for (int i = 0; i < panels_; ++i) {
                multiply_expanded(format_, n_in_, weights_ + i * stride_, tile, rows,
                                  out.y[0] + i * kPanel, Tile::kColumns);
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
    bool expanded_;
};

// One item of work: some panels of a product for rows [begin, end) of the call. The panels stay in
// the first caches while activations stream by.
void run_item(const MatMul& m, const Path& path, const Scratch& scratch, const Product& p,
              int64_t panel, int64_t first, int64_t begin, int64_t end, const Lane& lane) {
    uint8_t* room = m.scratch + scratch.rooms + lane.index * scratch.room;
    const int64_t left = panel_count(p.n_out) - panel;
    const int panels = left < path.panels ? int(left) : path.panels;
    const PanelProduct product(m, path, scratch, p, panel, panels, end - begin, room);
    std::optional<PanelProduct> gate;
    if (m.gate != Gate::none) {
        gate.emplace(m, path, scratch, m.products[0], panel, panels, end - begin,
                     room + scratch.room / 2);
    }
    for (int64_t row = begin; row < end; row += kTileRows) {
        const int n = end - row < kTileRows ? int(end - row) : kTileRows;
        Tile tile, gates;
        if (gate) gate->run(row / kTileRows, n, gates);
        product.run(row / kTileRows, n, tile);
        finish(p, m.gate, first + row, n, panel * kPanel, product.columns(), tile, gates);
    }
}

// All products over prepared rows.
void multiply(const MatMul& m, const Path& path, const Scratch& scratch, int64_t first,
              int64_t rows, const Lane& lane) {
    const int begin = m.gate != Gate::none ? 1 : 0;  // the gate is computed beside its product
    const auto groups = [&](const Product& p) {
        return (panel_count(p.n_out) + path.panels - 1) / path.panels;
    };
    int64_t total = 0;
    for (int i = begin; i < m.n_products; ++i) total += groups(m.products[i]);
    // Rows are split where there are too few groups of panels to go round, by no less than 64 rows.
    int64_t splits = 1;
    if (path.shared) {
        const int64_t wanted = (4 * lane.count + total - 1) / total;
        const int64_t most = rows / 64 > 1 ? rows / 64 : 1;
        splits = wanted < most ? wanted : most;
    }
    const int64_t height = round_up((rows + splits - 1) / splits, kTileRows);

    const std::atomic_ref<int64_t> counter(*reinterpret_cast<int64_t*>(m.scratch));
    const Range share = lane.share(total);
    int64_t own = share.begin;
    const int64_t end = path.shared ? total * splits : share.end;
    const auto next = [&] {
        return path.shared ? counter.fetch_add(1, std::memory_order_relaxed) : own++;
    };
    for (int64_t item = next(); item < end; item = next()) {
        const int64_t row = item % splits * height;
        int64_t group = item / splits;
        int i = begin;
        while (group >= groups(m.products[i])) group -= groups(m.products[i++]);
        run_item(m, path, scratch, m.products[i], group * path.panels, first, row,
                 row + height < rows ? row + height : rows, lane);
    }
}

void matmul(const MatMul& m, const Path& path, int64_t first, int64_t rows, const Lane& lane) {
    const Scratch scratch(m, path, rows, lane.count);
    if (lane.index == 0) *reinterpret_cast<int64_t*>(m.scratch) = 0;
    prepare(m, scratch, first, rows, lane);
    lane.sync();
    multiply(m, path, scratch, first, rows, lane);
}

}  // namespace

size_t single_scratch_bytes(const MatMul& m, int64_t rows, int lanes) {
    return size_t(Scratch(m, kSingle, rows, lanes).bytes);
}

size_t many_scratch_bytes(const MatMul& m, int64_t rows, int lanes) {
    return size_t(Scratch(m, kMany, rows, lanes).bytes);
}

void matmul_single(const MatMul& m, int64_t first, int64_t rows, const Lane& lane) {
    matmul(m, kSingle, first, rows, lane);
}

void matmul_many(const MatMul& m, int64_t first, int64_t rows, const Lane& lane) {
    matmul(m, kMany, first, rows, lane);
}

}  // namespace minfer::MINFER_ISA
