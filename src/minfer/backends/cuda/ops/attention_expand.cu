// The pages that prefill rows see, as halves: what the tiled attention kernels read instead of a
// q8_0 cache. Each page is converted once for all query tiles and heads.
//
// Shapes:  planes as kv.py; k_out, v_out planes of an f16 cache with the same pages.
// Who:     grid (BLOCKS, slots). A block finds the positions of its slot's rows, then takes every
//          BLOCKS-th page between the first and last that they see; a thread 8 values.
// Floor:   bytes of the pages read, 2 bytes a value written (and read again from L2).
// Numerics: quant times scale, rounded to a half.
// Macros:  HD.
#include "lib/attention_rows.cuh"

constexpr int THREADS = 256;

// Eight values at feature `d` of a key, as halves.
DEVICE uint4 halves(const u8* plane, const f16* scales, i64 block, int key, int d) {
    uint2 w = *(const uint2*)(plane + block * PAGE * HD + value_at<HD, KV_Q8_0>(key, d));
    f16 scale = scales[block * PAGE * HD / scale_group(HD) + scale_at<HD>(key, d)];
    f16x2 both = join_f16(scale, scale);
    return make_uint4(bytes_to_f16(w.x, 0, both), bytes_to_f16(w.x, 1, both),
                      bytes_to_f16(w.y, 0, both), bytes_to_f16(w.y, 1, both));
}

KERNEL __launch_bounds__(THREADS)
    attention_expand(const u8* k_plane, const u8* v_plane, const f16* k_scales, const f16* v_scales,
                     const i32* positions, const i32* seqs, const i32* page_table, f16* k_out,
                     f16* v_out, int rows, int n_kv_heads, int max_pages, int window) {
    __shared__ int lowest, highest;
    pdl_launch();
    int slot = blockIdx.y;
    if (threadIdx.x == 0) lowest = 0x7fffffff, highest = -1;
    __syncthreads();
    for (int r = threadIdx.x; r < rows; r += THREADS) {
        if (seqs[r] != slot || positions[r] < 0) continue;
        atomicMin(&lowest, positions[r]);
        atomicMax(&highest, positions[r]);
    }
    __syncthreads();
    pdl_wait();
    int first = window > 0 ? max(0, lowest - window + 1) / PAGE : 0;
    for (int page = first + blockIdx.x; page <= highest / PAGE && highest >= 0; page += gridDim.x) {
        i64 block = kv_block(page_table[(i64)slot * max_pages + page], 0, n_kv_heads);
        for (int i = threadIdx.x; i < n_kv_heads * PAGE * HD / 8; i += THREADS) {
            int d = i % (HD / 8) * 8, key = i / (HD / 8) % PAGE;
            i64 head = block + i / (HD / 8) / PAGE;
            i64 to = head * PAGE * HD + value_at<HD, KV_F16>(key, d);
            *(uint4*)(k_out + to) = halves(k_plane, k_scales, head, key, d);
            *(uint4*)(v_out + to) = halves(v_plane, v_scales, head, key, d);
        }
    }
}
