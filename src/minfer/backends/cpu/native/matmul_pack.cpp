// GGUF matrices -> packed panels (matmul_layout.h), and GGUF rows -> f32.

#include <cstring>

#include "matmul.h"
#include "matmul_gguf.h"
#include "matmul_layout.h"
#include "simd.h"

namespace minfer::MINFER_ISA {

namespace {

void write_u32(uint8_t* p, uint32_t x) { std::memcpy(p, &x, sizeof x); }

// The codes of 32 inputs of one column, into its four bytes of each plane. `plane` points at the
// column's bytes in the first one.
template <int Bits>
void pack_codes(const uint8_t* codes, uint8_t* plane) {
    uint32_t q[8];
    std::memcpy(q, codes, sizeof q);
    if constexpr (Bits == 8) {
        for (int t = 0; t < 8; ++t) write_u32(plane + t * kPlane, q[t]);
        return;
    }
    if constexpr (Bits >= 4) {
        for (int t = 0; t < 4; ++t) {
            write_u32(plane, (q[t] & 0x0f0f0f0f) | (q[t + 4] & 0x0f0f0f0f) << 4);
            plane += kPlane;
        }
    }
    if constexpr (Bits < 4 || Bits == 6) {
        constexpr int shift = Bits == 6 ? 4 : 0;
        for (int half = 0; half < 2; ++half) {
            uint32_t pairs = 0;
            for (int t = 0; t < 4; ++t) {
                pairs |= (q[4 * half + t] >> shift & 0x03030303) << (2 * t);
            }
            write_u32(plane, pairs);
            plane += kPlane;
        }
    }
    if constexpr (Bits == 3 || Bits == 5) {
        uint32_t bits = 0;
        for (int t = 0; t < 8; ++t) bits |= (q[t] >> (Bits - 1) & 0x01010101) << t;
        write_u32(plane, bits);
    }
}

template <Format F>
void pack_block(const Block& b, int column, uint8_t* dst) {
    constexpr Traits t = traits(F);
    constexpr BlockLayout layout(t);
    if constexpr (t.scales == Scales::power) {
        dst[column] = uint8_t(b.scale);
    } else {
        std::memcpy(dst + 2 * column, &b.scale, 2);
        if constexpr (t.minimum) std::memcpy(dst + 2 * (kPanel + column), &b.minimum, 2);
    }
    uint8_t* integers = dst + layout.factors + column;
    for (int g = 0; g < (layout.integers ? layout.groups : 0); ++g) {
        if constexpr (t.scales == Scales::nibble) {
            integers[g * kPanel] = uint8_t(b.scales[g] | b.minimums[g] << 4);
        } else {
            integers[g * kPanel] = uint8_t(b.scales[g]);
            if constexpr (t.minimum) integers[(layout.groups + g) * kPanel] = b.minimums[g];
        }
    }
    for (int chunk = 0; chunk < t.block / 32; ++chunk) {
        pack_codes<t.bits>(b.codes + 32 * chunk,
                           dst + layout.codes() + chunk * layout.chunk + 4 * column);
    }
}

template <Format F>
void pack_panel(int64_t n_in, int columns, const uint8_t* gguf, uint8_t* dst) {
    constexpr Traits t = traits(F);
    const int64_t row_bytes = n_in / t.block * t.bytes;
    Block b;
    for (int64_t i = 0; i < n_in / t.block; ++i) {
        for (int c = 0; c < columns; ++c) {
            unpack<F>(gguf + c * row_bytes + i * t.bytes, b);
            pack_block<F>(b, c, dst);
        }
        dst += BlockLayout(t).bytes;
    }
}

template <typename T>
void pack_numbers(int64_t n_in, int columns, const uint8_t* gguf, uint8_t* dst) {
    // 16 inputs at a time: whole cache lines on both sides.
    for (int64_t k = 0; k < n_in; k += 16) {
        const int64_t end = k + 16 < n_in ? k + 16 : n_in;
        for (int c = 0; c < columns; ++c) {
            const uint8_t* row = gguf + c * n_in * int64_t(sizeof(T));
            for (int64_t i = k; i < end; ++i) {
                std::memcpy(dst + (i * kPanel + c) * int64_t(sizeof(T)), row + i * sizeof(T),
                            sizeof(T));
            }
        }
    }
}

template <Format F>
void dequantize_row(int64_t n_in, const uint8_t* p, float* out) {
    constexpr Traits t = traits(F);
    Block b;
    for (int64_t i = 0; i < n_in; i += t.block, p += t.bytes, out += t.block) {
        unpack<F>(p, b);
        const float factor =
            t.scales == Scales::power ? half_power(b.scale) : from_f16(b.scale);
        const float least = t.minimum ? from_f16(b.minimum) : 0.0f;
        for (int g = 0; g < t.block / t.group; ++g) {
            const bool nested = t.scales == Scales::nested || t.scales == Scales::nibble;
            const float scale = nested ? factor * float(b.scales[g]) : factor;
            const float minimum = nested ? -(least * float(b.minimums[g])) : least;
            for (int j = g * t.group; j < (g + 1) * t.group; ++j) {
                int code = b.codes[j];
                if constexpr (t.codes == Codes::iq4) code = kIq4Codes[code];
                if constexpr (t.codes == Codes::fp4) code = kFp4Codes[code];
                const float value = scale * float(code - t.offset);
                out[j] = t.minimum ? value + minimum : value;
            }
        }
    }
}

}  // namespace

size_t packed_bytes(Format format, int64_t n_in, int64_t n_out) {
    const int64_t bytes = panel_count(n_out) * panel_bytes(format, n_in);
    return size_t((bytes + 63) / 64 * 64);
}

void pack(Format format, int64_t n_in, int64_t n_out, const uint8_t* gguf, uint8_t* packed,
          const Lane& lane) {
    const Traits t = traits(format);
    const int64_t row_bytes = n_in / t.block * t.bytes;
    const int64_t stride = panel_bytes(format, n_in);
    const Range share = lane.share(panel_count(n_out));
    for (int64_t i = share.begin; i < share.end; ++i) {
        const int64_t left = n_out - i * kPanel;
        const int columns = left < kPanel ? int(left) : kPanel;
        const uint8_t* src = gguf + i * kPanel * row_bytes;
        uint8_t* dst = packed + i * stride;
        if (columns < kPanel) std::memset(dst, 0, size_t(stride));
        if (format == Format::F32) {
            pack_numbers<uint32_t>(n_in, columns, src, dst);
        } else if (!is_quantized(format)) {
            pack_numbers<uint16_t>(n_in, columns, src, dst);
        } else {
            with_quantized(format,
                           [&]<Format F>() { pack_panel<F>(n_in, columns, src, dst); });
        }
    }
}

void dequantize(Format format, int64_t n_in, const uint8_t* gguf_row, float* out) {
    switch (format) {
        case Format::F32: std::memcpy(out, gguf_row, size_t(n_in) * sizeof(float)); return;
        case Format::F16:
            for (int64_t i = 0; i < n_in; ++i) out[i] = from_f16(read_u16(gguf_row + 2 * i));
            return;
        case Format::BF16:
            for (int64_t i = 0; i < n_in; ++i) out[i] = from_bf16(read_u16(gguf_row + 2 * i));
            return;
        default:
            with_quantized(format, [&]<Format F>() { dequantize_row<F>(n_in, gguf_row, out); });
    }
}

}  // namespace minfer::MINFER_ISA
