// How a packed matrix lies in memory: the same for every instruction set and both paths.
//
// A panel is 16 output columns over the whole input width; panels follow each other, the last one
// padded with zeros. Plain numbers: [n_in][16]. Quantized types: blocks of 32 or 256 inputs, each
//
//   factors   half, nested, nibble: [16] f16 scale, then [16] f16 minimum where the type has one;
//             power: [16] exponent bytes
//   integers  nested: [groups][16] int8 scale, then [groups][16] uint8 minimum where there is one;
//             nibble: [groups][16] bytes, scale low and minimum high
//   codes     for each 32 inputs, planes of 64 bytes; byte 4 c + i of a plane belongs to column c
//             and to inputs i mod 4. With t = 0..7 the four inputs 4t..4t+3:
//               8 bits  plane t
//               nibbles (4, 5, 6 bits) plane t mod 4, low half for t < 4, high half for the rest
//               pairs   (2, 3 bits: the low two; 6 bits: the high two) plane t / 4, bits 2 (t mod
//               4) bits    (3, 5 bits: the highest) one plane, bit t
//             in the order nibbles, pairs, bits
//
// so a plane is a register whose 32-bit lanes are the columns: what an integer dot product wants,
// with shifts and masks only. Sizes are GGUF's, plus 3 % where 6-bit scales take a byte.
#pragma once

#include <cstddef>
#include <cstdint>

#include "formats.h"

namespace minfer {

constexpr int kPanel = 16;
constexpr int kPlane = 4 * kPanel;  // bytes

// Offsets within one block of a panel of a quantized type.
struct BlockLayout {
    int groups;
    int factors;  // bytes
    int integers;
    int chunk;  // bytes of the codes of 32 inputs
    int bytes;  // of the whole block

    constexpr explicit BlockLayout(const Traits& t)
        : groups(t.block / t.group),
          factors(t.scales == Scales::power ? kPanel : 2 * kPanel * (1 + t.minimum)),
          integers(t.scales == Scales::nested   ? groups * kPanel * (1 + t.minimum)
                   : t.scales == Scales::nibble ? groups * kPanel
                                                : 0),
          chunk(t.bits * kPlane),
          bytes(factors + integers + t.block / 32 * chunk) {}

    constexpr int codes() const { return factors + integers; }
};

constexpr int64_t panel_bytes(Format format, int64_t n_in) {
    const Traits t = traits(format);
    if (t.group == 0) return n_in * kPanel * t.bytes;
    return n_in / t.block * BlockLayout(t).bytes;
}

constexpr int64_t panel_count(int64_t n_out) { return (n_out + kPanel - 1) / kPanel; }

}  // namespace minfer
