// Expanding a pair of packed panels for the int8 path: codes, rotated, as unsigned bytes.

#include "matmul_int8.h"

#if defined(MINFER_ISA_avx512)

#include <cstring>

#include "matmul_codes.h"
#include "matmul_gguf.h"

namespace minfer::avx512 {

namespace {

// Sums and differences of bytes that lie `Distance` apart in each 32-bit lane.
template <int Distance>
MINFER_FN vb butterfly(vb x) {
    static_assert(Distance == 1 || Distance == 2);
    const __m512i swap = _mm512_set4_epi32(0x0e0f0c0d, 0x0a0b0809, 0x06070405, 0x02030001);
    const vb other = vb(Distance == 2 ? _mm512_rol_epi32(__m512i(x), 16)
                                      : _mm512_shuffle_epi8(__m512i(x), swap));
    const __mmask64 second = Distance == 2 ? 0xccccccccccccccccu : 0xaaaaaaaaaaaaaaaau;
    return vb(_mm512_mask_sub_epi8(__m512i(x + other), second, __m512i(other), __m512i(x)));
}

// Hadamard transform of every `Points` consecutive inputs of a chunk of 32. Bytes may wrap on the
// way: the results fit, and sums are right modulo 256.
template <int Points>
MINFER_FN void rotate(vb (&codes)[8]) {
    for (int distance = 1; distance < Points / 4; distance *= 2) {
        for (int t = 0; t < 8; ++t) {
            if (t & distance) continue;
            const vb a = codes[t], b = codes[t + distance];
            codes[t] = a + b;
            codes[t + distance] = a - b;
        }
    }
    for (vb& x : codes) x = butterfly<1>(butterfly<2>(x));
}

template <Format F, int T = 0>
MINFER_FN void read_codes(const PanelReader<F>& panel, int chunk, vb (&codes)[8]) {
    if constexpr (T < 8) {
        codes[T] = panel.template code<T>(chunk);
        read_codes<F, T + 1>(panel, chunk, codes);
    }
}

template <Format F>
void expand(int64_t n_in, const uint8_t* panel, uint8_t* codes_out, float* scales,
            float* minimums) {
    constexpr Traits t = traits(F);
    constexpr int n = points(many_form(F));
    // Rotated codes are taken about their middle, so that they and their transform fit a byte.
    constexpr int centre = !t.minimum ? t.offset : 1 << (t.bits - 1);
    for (int64_t i = 0; i < n_in / t.block; ++i, panel += BlockLayout(t).bytes) {
        const PanelReader<F> reader{panel, 0};
        for (int chunk = 0; chunk < t.block / 32; ++chunk) {
            vb codes[8];
            read_codes(reader, chunk, codes);
            if constexpr (n > 1) {
                for (vb& x : codes) x = x - set1_bytes(centre);
                rotate<n>(codes);
                for (vb& x : codes) x = x + set1_bytes(128);
            }
            for (int k = 0; k < 8; ++k, codes_out += kPair * kPlane) {
                store_bytes(codes_out, codes[k]);
            }
        }
        for (int g = 0; g < t.block / t.group; ++g) {
            const vf scale = reader.scale(g);
            store(scales, scale * set1(1.0f / n));
            scales += kPair * kPanel;
            if constexpr (t.minimum) {
                store(minimums, fma(scale, set1(centre - t.offset), reader.minimum(g)));
                minimums += kPair * kPanel;
            }
        }
    }
}

}  // namespace

void expand_pair(Format format, int64_t n_in, const uint8_t* panel, int64_t stride, int panels,
                 uint8_t* expanded) {
    float* scales = reinterpret_cast<float*>(expanded + n_in * kPair * kPanel);
    float* minimums = scales + n_in / 16 * kPair * kPanel;
    if (panels < kPair) std::memset(expanded, 0, size_t(expanded_bytes(n_in)));
    for (int i = 0; i < panels; ++i) {
        with_quantized(format, [&]<Format F>() {
            expand<F>(n_in, panel + i * stride, expanded + i * kPlane, scales + i * kPanel,
                      minimums + i * kPanel);
        });
    }
}

}  // namespace minfer::avx512
#endif
