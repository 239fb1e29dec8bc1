// Attention of many rows on Hopper: as `attention_prefill.cu`, on warpgroup products.
//
//   y[h] = sum_j p_j v_j,  p = softmax(scale * q[h] . k_j),  j <= position, j > position - window
//
// Shapes:  as `attention_prefill.cu`; K and V of halves.
// Who:     grid (tiles of 128 (row, query head) pairs, kv heads), three warpgroups. The first
//          copies: one warp brings pages of K and V to a ring in shared memory, 8 KiB a copy, which
//          fits because the cache already lies in the swizzle the matrix unit reads (`lib/kv.cuh`).
//          The other two compute 64 pairs each. A step of KEYS keys is two products, the scores of
//          these keys and the sums over the keys before, and then the softmax of these scores: it
//          runs beside the sums, and beside the other warpgroup's products, since the two take
//          turns. Tiles walk runs of rows as there.
// Floor:   4 * HD flops a query and key.
// Limits:  sm_90a; f16 cache; HD 64, 128, 256; any GROUP.
// Numerics: as `attention_prefill.cu`. Bytes past a run's last key, which may be anything, are
//          masked in the scores and zeroed in the values.
// Macros:  HD, GROUP (query heads a kv head), SOFTCAP (0/1), HALVES (0;
//          1 chunked, 2 ordered), STAGES.
#include "lib/attention_rows.cuh"
#include "lib/wgmma_attention.cuh"

constexpr int KV = KV_F16;
constexpr int THREADS = 384, CONSUMERS = 256, ROWS = 64, PAIRS = 2 * ROWS;
constexpr int KEYS = HD <= 128 ? 128 : 64, PAGES = KEYS / PAGE, BANDS = HD / 64;
constexpr int BAND = KEYS * 128;  // bytes of 64 features of the keys in hand
constexpr int TILE = BANDS * BAND;  // bytes of K, or V, of a stage
constexpr int COPY = PAGE * 128;  // bytes of 64 features of a page
constexpr int QUERIES = ROWS * HD * 2;  // bytes of a warpgroup's queries

// Place in the ring.
struct Place {
    int stage = 0;
    u32 parity = 0;
    DEVICE void next() {
        if (++stage == STAGES) stage = 0, parity ^= 1;
    }
};

// The pages of a run that step `step` of KEYS keys needs: [first, end).
struct Pages {
    int first, end;
    DEVICE Pages(int step, int low, int high) {
        first = max(step * PAGES, low / PAGE);
        end = min(step * PAGES + PAGES, high / PAGE + 1);
    }
};

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

// A stage of K (plane 0) or V has been read: computing warps tell it, and the copying warp awaits
// it. By a barrier with a number: it orders what each lane has zeroed there before the next copy.
static_assert(6 + 2 * STAGES <= 16, "barriers 0 to 5 have other uses");
DEVICE void tell_read(int plane, int stage) {
    arrive_some<CONSUMERS + WARP>(6 + plane * STAGES + stage);
}
DEVICE void await_read(int plane, int stage) {
    sync_some<CONSUMERS + WARP>(6 + plane * STAGES + stage);
}

// Copy the pages of one step of one plane; by a warp.
DEVICE void copy_pages(u8* to, u64* full, const u8* plane, const i32* table, const Pages& pages,
                       int step, int kv_head, int n_kv_heads) {
    if (!elect()) return;
    barrier_expect(full, (pages.end - pages.first) * BANDS * COPY);
#pragma unroll 1
    for (int page = pages.first; page < pages.end; page++) {
        i64 block = kv_block(table[page], kv_head, n_kv_heads);
#pragma unroll 1
        for (int b = 0; b < BANDS; b++)
            bulk_copy(to + b * BAND + (page - step * PAGES) * COPY,
                      plane + (block * BANDS + b) * COPY, COPY, full);
    }
}

// Bring a warpgroup's queries to shared memory in the swizzle.
DEVICE void load_queries(u8* to, const float* q, int first_pair, int rows, int kv_head,
                         int n_kv_heads, const i32* positions) {
#pragma unroll 2
    for (int i = threadIdx.x % 128; i < ROWS * HD / 8; i += 128) {
        int r = i / (HD / 8), piece = i % (HD / 8), pair = first_pair + r, row = pair / GROUP;
        uint4 halves = make_uint4(0, 0, 0, 0);
        if (row < rows && positions[row] >= 0) {
            i64 head = ((i64)row * n_kv_heads + kv_head) * GROUP + pair % GROUP;
            const float4* p = (const float4*)(q + head * HD + 8 * piece);
            float4 a = p[0], b = p[1];
            halves = make_uint4(pack_f16(a.x, a.y), pack_f16(a.z, a.w), pack_f16(b.x, b.y),
                                pack_f16(b.z, b.w));
        }
        *(uint4*)(to + piece / 8 * (ROWS * 128) + r * 128 + ((piece % 8) ^ (r % 8)) * 16) = halves;
    }
}

// Zero the values of keys outside of the pages and of [.., high]; by both computing warpgroups.
DEVICE void zero_values(u8* v, int step, const Pages& pages, int high) {
    int first = pages.first * PAGE - step * KEYS;
    int end = min(pages.end * PAGE - 1, high) + 1 - step * KEYS;
#pragma unroll 1
    for (int i = threadIdx.x - 128; i < KEYS * HD / 8; i += CONSUMERS) {
        int key = i / 8 % KEYS;
        if (key < first || key >= end) *(uint4*)(v + 16 * i) = make_uint4(0, 0, 0, 0);
    }
    publish_shared();
    sync_some<CONSUMERS>(1);
}

// Which of the two computing warpgroups may begin products. Each has the tensor cores to itself for
// the products of a step, while the other is at its softmax; left to chance, both would multiply at
// half the speed and then both leave the tensor cores idle. The two take equally many turns.
struct Turn {
    int group;

    DEVICE void begin() const {  // the first turn is group 0's
        if (group == 1) pass();
    }
    DEVICE void take() const { sync_some<CONSUMERS>(4 + group); }
    DEVICE void pass() const { arrive_some<CONSUMERS>(5 - group); }
    DEVICE void end() const {  // no barrier is left half full: group 1 has passed one turn more
        if (group == 0) take();
    }
};

// The operand at a stage. Products take operands from the registers that a warp has in common;
// where the compiler does not know a stage to be the same in a warp, it moves each operand there.
DEVICE u64 stage_of(u64 first, int stage) {
    return operand_at(first, __shfl_sync(FULL_MASK, keep(stage), 0) * TILE);
}

// Begin scores = queries x keys of a stage, [64][KEYS].
DEVICE void begin_scores(float (&scores)[KEYS / 8][4], u64 queries, u64 keys) {
#pragma unroll
    for (int d = 0; d < HD / 16; d++)
        WgmmaScores<KEYS>::run(scores, operand_at(queries, d / 4 * (ROWS * 128) + d % 4 * 32),
                               operand_at(keys, d / 4 * BAND + d % 4 * 32), d > 0);
    wgmma_commit();
}

// Begin out += probabilities x values of a stage.
DEVICE void begin_sums(State<HD>& state, const u32 (&p)[KEYS / 16][4], u64 values) {
#pragma unroll
    for (int i = 0; i < KEYS / 16; i++)
        WgmmaValues<HD>::run(state.out, p[i], operand_at(values, i * (16 * 128)));
    wgmma_commit();
}

// Probabilities as the operand of a product: the accumulator's layout is that of A.
DEVICE void pack(u32 (&p)[KEYS / 16][4], const float (&s)[KEYS / 8][4]) {
#pragma unroll
    for (int i = 0; i < KEYS / 16; i++)
#pragma unroll
        for (int j = 0; j < 4; j++)
            p[i][j] = pack_f16(s[2 * i + j / 2][j % 2 * 2], s[2 * i + j / 2][j % 2 * 2 + 1]);
}

KERNEL __launch_bounds__(THREADS, 1)
    attention_prefill_sm90(const float* q, const u8* k_plane, const u8* v_plane,
                           const i32* positions, const i32* seqs, const i32* page_table, float* y,
                           int rows, int n_kv_heads, int max_pages, int window, float scale,
                           float cap, int padded_rows) {
    extern __shared__ __align__(1024) u8 memory[];
    u8 *queries = memory, *keys = queries + 2 * QUERIES, *values = keys + STAGES * TILE;
    auto full = (u64(*)[STAGES])(values + STAGES * TILE);  // of K, then of V
    pdl_launch();
    int warp = __shfl_sync(FULL_MASK, threadIdx.x / WARP, 0);  // known to be the same in a warp
    int lane = threadIdx.x % WARP;
    int kv_head = blockIdx.y, first_pair = (gridDim.x - 1 - blockIdx.x) * PAIRS;
    int last_row = min((first_pair + PAIRS - 1) / GROUP, rows - 1);
    if (threadIdx.x == 0) {
        for (int s = 0; s < 2 * STAGES; s++) barrier_init(full[0] + s, 1);
        barrier_init_fence();
    }
    __syncthreads();
    // positions, seqs and the page table are inputs of the step: no kernel writes them
    Run run = find_run(first_pair / GROUP, last_row + 1, positions, seqs);
    pdl_wait();

    if (warp < 4) {
        set_registers_down<40>();  // of 168 * 384 registers, 40 * 128 + 232 * 256 are taken
        if (warp > 0) return;
        Place place;
        int copied = 0;  // steps
        while (run.end > run.first) {  // padded rows are the last
            const i32* table = page_table + (i64)seqs[run.first] * max_pages;
            int low = window > 0 ? max(0, run.lowest - window + 1) : 0;
            for (int step = low / KEYS; step <= run.highest / KEYS; step++, place.next()) {
                Pages pages(step, low, run.highest);
#pragma unroll 1
                for (int plane = 0; plane < 2; plane++) {
                    if (copied >= STAGES) await_read(plane, place.stage);
                    copy_pages(keys + (plane * STAGES + place.stage) * TILE,
                               full[plane] + place.stage, plane ? v_plane : k_plane, table,
                               pages, step, kv_head, n_kv_heads);
                }
                copied++;
            }
            if (run.end > last_row) break;
            run = find_run(run.end, last_row + 1, positions, seqs);
        }
        for (int stage = 0; stage < min(copied, STAGES); stage++)  // no barrier is left half full
            for (int plane = 0; plane < 2; plane++) await_read(plane, stage);
    } else {
        set_registers_up<232>();
        int group = warp / 4 - 1, g = lane / 4, t = lane % 4;
        int my_pair = first_pair + group * ROWS;
        u8* my_queries = queries + group * QUERIES;
        load_queries(my_queries, q, my_pair, rows, kv_head, n_kv_heads, positions);
        publish_shared();
        sync_some<128>(2 + group);
        State<HD> state;
        state.clear();
        float factor = SOFTCAP ? 1.0f : scale * LOG2E;
        bool alone = first_pair + PAIRS <= rows * GROUP && run.end > last_row;
        u64 q_operand = operand(shared_address(my_queries));
        u64 k_operand = operand(shared_address(keys));
        u64 v_operand = values_operand(shared_address(values), BAND);
        Turn turn = {group};
        turn.begin();
        Place place;
        while (run.end > run.first) {
            int low = window > 0 ? max(0, run.lowest - window + 1) : 0;
            int seen[2];
#pragma unroll
            for (int r = 0; r < 2; r++)
                seen[r] = run.last_key((my_pair + warp % 4 * 16 + g + 8 * r) / GROUP, positions);
            float scores[KEYS / 8][4];
            u32 p[KEYS / 16][4];
            auto await_keys = [&] {
                u64 found = stage_of(k_operand, place.stage);
                barrier_wait(full[0] + place.stage, place.parity);
                return found;
            };
            // Called between softmax and `wgmma_wait`, where its branches keep the two apart: the
            // assembler would move the wait to where the softmax begins, and nothing would run
            // beside the sums.
            auto await_values = [&](int step) {
                barrier_wait(full[1] + place.stage, place.parity);
                Pages pages(step, low, run.highest);
                if (step * KEYS + KEYS - 1 > run.highest || pages.first * PAGE > step * KEYS)
                    zero_values(values + place.stage * TILE, step, pages, run.highest);
            };
            auto weigh = [&](int step) {  // scores to probabilities
                int key = step * KEYS;
                if (SOFTCAP) cap_scores(scores, scale, cap);
                if (run.masks(key, KEYS, window, alone)) mask_scores(scores, key, seen, window);
                return softmax(scores, state, factor);
            };
            // The first keys have no sums before them. Nothing is rescaled, either: the sums of the
            // run's rows are 0 so far, and other rows' decay is 1.
            int step = low / KEYS;
            u64 k = await_keys();
            turn.take();
            wgmma_fence();
            begin_scores(scores, q_operand, k);
            turn.pass();
            wgmma_wait<0>();
            settle(scores);
            tell_read(0, place.stage);
            weigh(step);
            await_values(step);
            pack(p, scores);
            while (++step <= run.highest / KEYS) {
                int before = place.stage;  // where the values to be summed are
                u64 v = stage_of(v_operand, before);
                place.next();
                k = await_keys();
                turn.take();
                wgmma_fence();
                begin_scores(scores, q_operand, k);
                begin_sums(state, p, v);
                turn.pass();
                wgmma_wait<1>();
                settle(scores);
                tell_read(0, place.stage);
                Decay decay = weigh(step);
                await_values(step);
                wgmma_wait<0>();
                settle(state.out);
                tell_read(1, before);
                if (decay.needed()) rescale(state, decay);
                pack(p, scores);
            }
            u64 v = stage_of(v_operand, place.stage);
            turn.take();
            wgmma_fence();
            begin_sums(state, p, v);
            turn.pass();
            wgmma_wait<0>();
            settle(state.out);
            tell_read(1, place.stage);
            place.next();
            if (run.end > last_row) break;
            run = find_run(run.end, last_row + 1, positions, seqs);
        }
        turn.end();
        state.finish();
#if HALVES
        write_halves<GROUP>(state, y, my_pair + warp % 4 * 16 + g, t, rows, kv_head, padded_rows);
#else
#pragma unroll
        for (int r = 0; r < 2; r++) {
            int pair = my_pair + warp % 4 * 16 + g + 8 * r, row = pair / GROUP;
            if (row >= rows) continue;
            i64 head = ((i64)row * n_kv_heads + kv_head) * GROUP + pair % GROUP;
#pragma unroll
            for (int n = 0; n < HD / 8; n++)
                *(float2*)(y + head * HD + 8 * n + 2 * t) =
                    make_float2(state.out[n][2 * r], state.out[n][2 * r + 1]);
        }
#endif
    }
}
#endif
