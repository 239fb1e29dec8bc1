// Copies into shared memory that run beside arithmetic, and the barriers that tell when they ended
// and when what they brought has been read.
//
// sm_90+: bulk copies complete on an mbarrier. Before: cp.async, 16 bytes a lane, in groups. The
// `WarpRing` has both behind one face; nothing else here chooses.
#include "lib/base.cuh"

DEVICE u32 shared_address(const void* p) { return (u32)__cvta_generic_to_shared(p); }

// The first place in shared memory from `p` on that is 1024-byte aligned, as operands of warpgroup
// products are. Cast to a number and back, a pointer would no longer be known to be a shared one.
DEVICE u8* align_shared(u8* p) { return p + (-shared_address(p) & 1023); }

// A vector of shared memory; keeps its place among products, so that few are in registers at a
// time.
DEVICE uint4 load_shared16(u32 address) {
    uint4 v;
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "r"(address));
    return v;
}

// Two floats of shared memory, of any block of a cluster where there are N_RANKS > 1.
template <int N_RANKS>
DEVICE float2 load_sums(u32 address) {
    float2 v;
    if constexpr (N_RANKS > 1)
        asm volatile("ld.shared::cluster.v2.f32 {%0, %1}, [%2];"
                     : "=f"(v.x), "=f"(v.y)
                     : "r"(address)
                     : "memory");
    else
        asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];"
                     : "=f"(v.x), "=f"(v.y)
                     : "r"(address)
                     : "memory");
    return v;
}

// True in one lane of a warp, which comes here whole. From Hopper on the assembler knows that one
// lane does what depends on it; of a lane by its number it does not, and makes what takes uniform
// registers, such as copies, a loop over lanes.
DEVICE bool elect() {
#if BULK_COPIES
    u32 elected;
    asm volatile("{ .reg .b32 leader; .reg .pred p; elect.sync leader|p, 0xffffffff; "
                 "selp.u32 %0, 1, 0, p; }"
                 : "=r"(elected));
    return elected;
#else
    return threadIdx.x % WARP == 0;
#endif
}

// ---- mbarriers ----------------------------------------------------------------------------------

DEVICE void barrier_init(u64* barrier, u32 count) {
    asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(count)
                 : "memory");
}

DEVICE void barrier_arrive(u64* barrier) {
    asm volatile("{ .reg .b64 t; mbarrier.arrive.shared.b64 t, [%0]; }" ::"r"(
                     shared_address(barrier))
                 : "memory");
}

// Waits until the phase of this parity has completed.
DEVICE void barrier_wait(u64* barrier, u32 parity) {
    u32 done;
    do {
#if BULK_COPIES
        asm volatile(
            "{ .reg .pred p; mbarrier.try_wait.parity.shared.b64 p, [%1], %2; "
            "selp.u32 %0, 1, 0, p; }"
            : "=r"(done)
            : "r"(shared_address(barrier)), "r"(parity)
            : "memory");
#else
        asm volatile(
            "{ .reg .pred p; mbarrier.test_wait.parity.shared.b64 p, [%1], %2; "
            "selp.u32 %0, 1, 0, p; }"
            : "=r"(done)
            : "r"(shared_address(barrier)), "r"(parity)
            : "memory");
#endif
    } while (!done);
}

#if BULK_COPIES
// Makes freshly initialised barriers visible to the copy engine; before the block's first barrier.
DEVICE void barrier_init_fence() {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

// One arrival that also announces `bytes` to come.
DEVICE void barrier_expect(u64* barrier, u32 bytes) {
    asm volatile("{ .reg .b64 t; mbarrier.arrive.expect_tx.shared.b64 t, [%0], %1; }" ::"r"(
                     shared_address(barrier)),
                 "r"(bytes)
                 : "memory");
}

// Copies a multiple of 16 bytes between 16-byte aligned addresses; completes on `barrier`.
DEVICE void bulk_copy(void* to, const void* from, u32 bytes, u64* barrier) {
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
            "r"(shared_address(to)),
        "l"(from), "r"(bytes), "r"(shared_address(barrier))
        : "memory");
}

// The copy that completes a phase of `barrier`, whose count is 1; by one thread.
DEVICE void fill(void* to, const void* from, u32 bytes, u64* barrier) {
    barrier_expect(barrier, bytes);
    bulk_copy(to, from, bytes, barrier);
}

DEVICE void cluster_sync() {
    asm volatile(
        "barrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire.aligned;" ::
            : "memory");
}

// As `cluster_sync`, but orders nothing: for threads whose loads from other blocks have ended.
DEVICE void cluster_leave() {
    asm volatile(
        "barrier.cluster.arrive.relaxed.aligned; barrier.cluster.wait.aligned;" ::: "memory");
}

// The place in block `rank` of the cluster that has this shared address in each.
DEVICE u32 cluster_address(u32 shared, u32 rank) {
    u32 address;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(address) : "r"(shared), "r"(rank));
    return address;
}
// Makes what is known to be written to shared memory visible to copies and warpgroup products that
// this thread issues.
DEVICE void publish_shared() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// As `bulk_copy`, for bytes that are read once: they leave the L2 cache first.
DEVICE void bulk_copy_once(void* to, const void* from, u32 bytes, u64* barrier) {
    u64 policy;
    asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
        "[%0], [%1], %2, [%3], %4;" ::"r"(shared_address(to)),
        "l"(from), "r"(bytes), "r"(shared_address(barrier)), "l"(policy)
        : "memory");
}
#endif

// Starts bringing a multiple of 16 bytes from a 16-byte aligned address into the L2 cache. A hint:
// nothing before sm_90.
DEVICE void prefetch(const void* from, u32 bytes) {
#if BULK_COPIES
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from), "r"(bytes));
#endif
}

// ---- cp.async -----------------------------------------------------------------------------------

// 16 bytes; `bytes` < 16 reads fewer and fills with zeros.
DEVICE void copy16_async(void* to, const void* from, int bytes = 16) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)),
                 "l"(from),
                 "r"(bytes)
                 : "memory");
}
DEVICE void copy_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int PENDING>
DEVICE void copy_wait() {  // until at most PENDING of this thread's groups are unfinished
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}

// Copies into a slot that many warps read, by one warp; `barrier` expects COPY_ARRIVALS.
#if BULK_COPIES
constexpr int COPY_ARRIVALS = 1;
DEVICE void warp_copy(u8* to, const u8* from, u32 bytes, u64* barrier) {
    if (elect()) fill(to, from, bytes, barrier);
}
#else
constexpr int COPY_ARRIVALS = WARP;
DEVICE void warp_copy(u8* to, const u8* from, u32 bytes, u64* barrier) {
    for (u32 i = threadIdx.x % WARP * 16; i < bytes; i += WARP * 16) copy16_async(to + i, from + i);
    asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(shared_address(barrier))
                 : "memory");
}
#endif

// ---- named barriers -----------------------------------------------------------------------------

// Wait for COUNT threads of a block at one of its 16 barriers; 0 is that of `__syncthreads`. Whole
// warps come here. What each thread did before is in order for all that wait.
template <int COUNT>
DEVICE void sync_some(int barrier) {
    asm volatile("bar.sync %0, %1;" ::"r"(barrier), "n"(COUNT) : "memory");
}

// Count among the COUNT of a barrier without waiting. Somebody waits for every phase, and nobody
// comes for the next one before it is over.
template <int COUNT>
DEVICE void arrive_some(int barrier) {
    asm volatile("bar.arrive %0, %1;" ::"r"(barrier), "n"(COUNT) : "memory");
}

// ---- a ring of slots that one warp fills and empties --------------------------------------------
// Call `issue` once for each slot, then in turn `wait`, read, `__syncwarp`, `issue` for slot `at`,
// `advance`. A warp that has no more to copy still calls `issue`, with 0 bytes.
template <int SLOTS, int SLOT_BYTES>
struct WarpRing {
    static constexpr int BYTES = SLOTS * SLOT_BYTES;
    u8* slots;       // 16-byte aligned, BYTES
    u64* barriers;  // SLOTS, initialised with a count of 1
    int at = 0;     // slot to read next, which is also the one to fill next
    u32 parity = 0;

    DEVICE WarpRing(u8* slots, u64* barriers) : slots(slots), barriers(barriers) {}

    // Copies bytes[i] from from[i] to places `pitch` apart in a slot.
    template <int N>
    DEVICE void issue(int slot, const u8* const (&from)[N], const u32 (&bytes)[N], int pitch) {
        u8* to = slots + slot * SLOT_BYTES;
#if BULK_COPIES
        u32 all = 0;
#pragma unroll
        for (int i = 0; i < N; i++) all += bytes[i];
        if (all && elect()) {
            barrier_expect(barriers + slot, all);
#pragma unroll
            for (int i = 0; i < N; i++)
                if (bytes[i]) bulk_copy_once(to + i * pitch, from[i], bytes[i], barriers + slot);
        }
#else
#pragma unroll
        for (int i = 0; i < N; i++)
            for (u32 at = threadIdx.x % WARP * 16; at < bytes[i]; at += WARP * 16)
                copy16_async(to + i * pitch + at, from[i] + at);
        copy_commit();
#endif
    }

    DEVICE const u8* wait() {
#if BULK_COPIES
        barrier_wait(barriers + at, parity);
#else
        copy_wait<SLOTS - 1>();
        __syncwarp();
#endif
        return slots + at * SLOT_BYTES;
    }

    // The slot just read is free: every lane has read it, and `issue` fills it next.
    DEVICE void advance() {
        if (++at == SLOTS) {
            at = 0;
            parity ^= 1;
        }
    }
};
