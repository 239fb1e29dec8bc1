// How `attention_decode` adds up: the strands of a part, in order, and the parts of a row, by the
// last block to arrive. Macros of the kernel: HD, SPLITS, WARPS, OUT_COLUMNS, OUT_ORDERED.
#include "lib/act.cuh"
#include "lib/strands.cuh"

constexpr int THREADS = WARPS * WARP, TILE = 8;  // query heads of an item
constexpr int STRANDS = PAGES * PAGE / KEYS;  // of a part
constexpr int RECORD = TILE * (HD + 2);  // 8 outputs, 8 maxima, 8 sums

struct Sums {
    float values[STRANDS][TILE][HD + 4];  // a row starts four banks after the one before
    float maxima[STRANDS][TILE], totals[STRANDS][TILE];
    float weights[TILE][SPLITS], inverse[TILE];  // of parts
};

DEVICE float4 scaled(float4 a, float f) { return make_float4(a.x * f, a.y * f, a.z * f, a.w * f); }
DEVICE void add_scaled(float4& sum, float4 a, float f) {
    sum.x += f * a.x, sum.y += f * a.y, sum.z += f * a.z, sum.w += f * a.w;
}

// Where the results of an item go, the first of which is value `first` of its row.
struct Result {
    float* y;
    int width, row, first;

    DEVICE void put(int four, float4 v) const {
        if (OUT_COLUMNS) {
            int pair = first / 2 + 2 * four;
            *pair_at(y, row, OUT_COLUMNS, pair, OUT_ORDERED) = pack_act(v.x, v.y);
            *pair_at(y, row, OUT_COLUMNS, pair + 1, OUT_ORDERED) = pack_act(v.z, v.w);
        } else {
            ((float4*)(y + row * width + first))[four] = v;
        }
    }
};

// Add the strands' results, in order: to y if this is the only part, else to the part's record.
DEVICE void merge(const Sums& sums, int heads, bool only, const Result& y, float* record) {
    for (int e = threadIdx.x; e < heads * HD / 4; e += THREADS) {
        int h = e * 4 / HD, d = e * 4 % HD;
        float top = -INFINITY, total = 0.0f;
        float4 sum = make_float4(0, 0, 0, 0);
#pragma unroll
        for (int i = 0; i < STRANDS; i++) top = fmaxf(top, sums.maxima[i][h]);
#pragma unroll
        for (int i = 0; i < STRANDS; i++) {
            float weight = exp2_of(sums.maxima[i][h] - top);
            total += weight * sums.totals[i][h];
            add_scaled(sum, *(const float4*)&sums.values[i][h][d], weight);
        }
        if (only) {
            y.put(e, scaled(sum, 1.0f / total));
        } else {
            __stcg((float4*)record + e, sum);
            if (d == 0) {
                __stcg(record + TILE * HD + h, top);
                __stcg(record + TILE * (HD + 1) + h, total);
            }
        }
    }
}

// Combine the records of all parts of a row and tile. Their outputs are asked for before the
// weights are known, and many at a time.
DEVICE void combine(Sums& sums, int heads, int parts, const float* records, const Result& y) {
    static_assert(SPLITS <= 2 * WARP, "a lane weighs two parts");
    constexpr int MANY = WARPS == 8 && SPLITS > 16 ? 32 : 2 * WARPS;  // as registers go
    int lane = threadIdx.x % WARP, n = heads * HD / 4, e = threadIdx.x;
    float4 x[MANY];
    auto ask = [&](int first) {
        const float* from = keep(records + first * RECORD + 4 * e);
        int there = e < n ? parts - first : 0;
#pragma unroll
        for (int i = 0; i < MANY; i++) {
            x[i] = make_float4(0, 0, 0, 0);
            if (i < there) x[i] = __ldcg((const float4*)(from + i * RECORD));
        }
    };
    ask(0);
    for (int h = threadIdx.x / WARP; h < heads; h += WARPS) {
        float top[2], total[2], weight[2], sum = 0.0f;
        // kept, lest what is the same for all items is computed once and held through all of them
        const float* tops = keep(records) + lane * RECORD + TILE * HD + h;
#pragma unroll
        for (int i = 0; i < 2; i++) {
            bool there = lane + i * WARP < parts;
            top[i] = there ? __ldcg(tops + i * WARP * RECORD) : -INFINITY;
            total[i] = there ? __ldcg(tops + i * WARP * RECORD + TILE) : 0.0f;
        }
        float best = warp_max(fmaxf(top[0], top[1]));
#pragma unroll
        for (int i = 0; i < 2; i++) {
            weight[i] = exp2_of(top[i] - best);
            sum += weight[i] * total[i];
            if (lane + i * WARP < SPLITS) sums.weights[h][lane + i * WARP] = weight[i];
        }
        sum = warp_sum(sum);
        if (lane == 0) sums.inverse[h] = 1.0f / sum;
    }
    __syncthreads();
    float4 out = make_float4(0, 0, 0, 0);
    for (int first = 0; e < n; ask(first)) {
        int h = e * 4 / HD;
#pragma unroll
        for (int i = 0; i < MANY; i++)
            if (first + i < parts) add_scaled(out, x[i], sums.weights[h][first + i]);
        first += MANY;
        if (first < parts) continue;
        y.put(e, scaled(out, sums.inverse[h]));
        out = make_float4(0, 0, 0, 0);
        e += THREADS;
        first = 0;
    }
}
