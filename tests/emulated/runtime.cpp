// The emulated multiprocessor: runs a launch cluster by cluster, every thread a fiber.
//
// A fiber runs until it has to wait; what it waits for is always that bit 0 of some word changes, so
// the scheduler knows whom to resume without asking. Two schedules, both of which hardware may
// choose: EARLY takes warps in order and completes copies and products where they are issued; LATE
// takes everything in reverse and completes them as late as may be: copies when no thread can go on
// without, products at the wait for them. What races shows in one or the other.
#include "runtime.h"

#include <csetjmp>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cmath>
#include <string>
#include <sys/mman.h>
#include <ucontext.h>
#include <vector>

emulated::Dim threadIdx, blockIdx, blockDim, gridDim;

namespace emulated {
namespace {

constexpr std::size_t STACK = 96 << 10, GUARD = 4 << 10;
constexpr u32 MARGIN = 4 << 10;  // behind dynamic shared memory, watched
constexpr u8 POISON = 0xff, CANARY = 0xa5;
constexpr int MOST_BLOCKS = 16, NAMED = 16;
constexpr u32 ZERO = 0;  // what a thread that may run waits for

struct Copy {
    u32 to;
    const void* from;
    u32 bytes, real, barrier;
    int group;  // of cp.async; -1 for a bulk copy, whose `barrier` gets the bytes
};

struct Block;
struct Thread {
    std::jmp_buf at;
    ucontext_t context;
    u8* stack = nullptr;
    bool started = false, done = true;
    const u32* word = &ZERO;
    u32 parity = 1;
    const char* what = "";
    Block* block = nullptr;
    u32 index = 0;
    u32 cluster_parity = 0;
    std::vector<Copy> copies;
    int group = 0;
};

struct Meeting {
    void* brought[GROUP];
    int arrived, generation;
    Work work;
    const char* what;
};

struct Warp {
    Meeting meeting;
    int group;  // of products, as this warp counts them
};

// Its four warps begin a product together and are done with it together.
struct Warpgroup {
    Meeting meeting;
    struct Pending {
        Product product;
        int group;
    };
    std::vector<Pending> products;
};

struct Named {
    u32 arrived, generation, count;
};

struct Block {
    Dim index;
    u32 rank, live;
    bool launched, waited;
    std::vector<Warp> warps;
    std::vector<Warpgroup> warpgroups;
    Named named[NAMED + 1];  // the last one is for all threads
};

struct Mbarrier {
    u32 phase : 1, count : 15, arrivals : 16;  // arrivals still to come
    i32 bytes;                                 // still to come
};
static_assert(sizeof(Mbarrier) == 8);

struct Arrival {  // when a thread's copies so far are done
    std::vector<Copy> copies;
    u32 barrier;
};

struct Launch {
    void (*entry)(const u64*);
    const u64* args;
    u32 shared, cluster;
    bool late;
    bool programmatic;
};

Launch launch;
std::jmp_buf scheduler, outside;
bool in_thread;
Thread* current;
std::vector<Thread> threads;
std::vector<Block> blocks;
u8* window;  // shared memory of a cluster
std::size_t statics[64], statics_end;
u32 cluster_arrived, cluster_generation, cluster_live;
std::vector<Copy> flying;
std::vector<Arrival> arrivals;
bool failed;
char message[1024];

u32 n_threads() { return blockDim.x; }

void yield() {
    if (!_setjmp(current->at)) _longjmp(scheduler, 1);
}

void release_all(Block& block) {
    Named& all = block.named[NAMED];
    if (block.live && all.arrived == block.live) all.arrived = 0, all.generation++;
}
void release_cluster() {
    if (cluster_live && cluster_arrived == cluster_live) cluster_arrived = 0, cluster_generation++;
}

void body() {
    for (;;) {
        launch.entry(launch.args);
        Block& block = *current->block;
        current->done = true;
        block.live--, cluster_live--;
        release_all(block);
        release_cluster();
        yield();
    }
}

__attribute__((noinline)) void resume(Thread& thread) {
    current = &thread;
    threadIdx = {thread.index, 0, 0};
    blockIdx = thread.block->index;
    in_thread = true;
    if (_setjmp(scheduler)) {
        in_thread = false;
        return;
    }
    if (thread.started) _longjmp(thread.at, 1);
    thread.started = true;
    getcontext(&thread.context);
    thread.context.uc_stack.ss_sp = thread.stack;
    thread.context.uc_stack.ss_size = STACK;
    thread.context.uc_link = nullptr;
    makecontext(&thread.context, body, 0);
    setcontext(&thread.context);
}

Mbarrier& barrier_at(u32 address) {
    return *(Mbarrier*)shared_at(address, sizeof(Mbarrier), sizeof(Mbarrier));
}

Mbarrier& live_barrier(u32 address) {
    Mbarrier& barrier = barrier_at(address);
    if (barrier.count == 0x7fff) fail("the barrier at %#x was not initialised", address);
    return barrier;
}

void settle(Mbarrier& barrier) {
    if (barrier.arrivals || barrier.bytes) return;
    barrier.phase ^= 1;
    barrier.arrivals = barrier.count;
}

void arrive(u32 address) {
    Mbarrier& barrier = live_barrier(address);
    if (!barrier.arrivals) fail("one arrival too many at the barrier %#x", address);
    barrier.arrivals--;
    settle(barrier);
}

void deliver(const Copy& copy) {
    u8* to = (u8*)shared_at(copy.to, copy.bytes, 16);
    std::memcpy(to, copy.from, copy.real);
    std::memset(to + copy.real, 0, copy.bytes - copy.real);
    if (copy.group >= 0) return;
    Mbarrier& barrier = live_barrier(copy.barrier);
    barrier.bytes -= (i32)copy.bytes;
    settle(barrier);
}

// Completes one of the copies in flight; false if there is none.
bool deliver_one() {
    if (!flying.empty()) {
        Copy copy = flying.back();
        flying.pop_back();
        deliver(copy);
        return true;
    }
    if (arrivals.empty()) return false;
    Arrival last = std::move(arrivals.back());
    arrivals.pop_back();
    for (const Copy& copy : last.copies) deliver(copy);
    arrive(last.barrier);
    return true;
}

u16 half_at(u32 address) {  // of an operand in the 128-byte swizzle
    address ^= (address >> 7 & 7) << 4;
    return *(const u16*)(window + address);
}

// Where a descriptor's operand begins, as an address of this block.
u32 operand_of(u64 descriptor) {
    u32 start = (u32)(descriptor & 0x3fff) << 4;
    if (descriptor >> 62 != 1) fail("an operand without the 128-byte swizzle");
    if (start & 0x380) fail("an operand at %#x: not at a row that is a multiple of 8", start);
    return current->block->rank * SPAN + start;
}

void multiply(const Product& p) {
    static float a[64][16], b[16][256], sums[64][256];
    for (int row = 0; row < 64; row++)
        for (int k = 0; k < 16; k++) {
            if (p.from_registers) {
                int lane = row / 16 * LANES + row % 8 * 4 + k % 8 / 2;
                u32 word = p.registers[row % 16 / 8 + k / 8 * 2][lane];
                a[row][k] = halves[k % 2 ? word >> 16 : word & 0xffff];
            } else {
                u32 stride = (u32)(p.a >> 32 & 0x3fff) << 4;
                u32 at = operand_of(p.a) + row / 8 * stride + row % 8 * 128 + k * 2;
                a[row][k] = halves[half_at(at)];
            }
        }
    u32 start = operand_of(p.b), stride = (u32)(p.b >> 32 & 0x3fff) << 4;
    u32 band = (u32)(p.b >> 16 & 0x3fff) << 4;
    for (int k = 0; k < 16; k++)
        for (int n = 0; n < p.n; n++) {
            u32 at = p.values ? n / 64 * band + k / 8 * stride + k % 8 * 128 + n % 64 * 2
                              : n / 8 * stride + n % 8 * 128 + k * 2;
            b[k][n] = halves[half_at(start + at)];
        }
    for (int row = 0; row < 64; row++) {
        for (int n = 0; n < p.n; n++) sums[row][n] = 0.0f;
        for (int k = 0; k < 16; k++)
            for (int n = 0; n < p.n; n++) sums[row][n] += a[row][k] * b[k][n];
    }
    for (int lane = 0; lane < GROUP; lane++)
        for (int i = 0; i < p.n / 2; i++) {
            int row = lane / LANES * 16 + lane % LANES / 4 + i % 4 / 2 * 8;
            float sum = sums[row][i / 4 * 8 + lane % 4 * 2 + i % 2];
            float& to = p.sums[lane][i];
            to = p.keep ? to + sum : sum;
        }
}

void start_block(Block& block, Thread* first) {
    block.live = n_threads();
    block.launched = block.waited = false;
    block.warps.assign(n_threads() / LANES, {});
    block.warpgroups.assign((n_threads() + GROUP - 1) / GROUP, {});
    std::memset(block.named, 0, sizeof(block.named));
    u8* shared = window + block.rank * SPAN;
    std::memset(shared, POISON, STATICS + launch.shared);
    std::memset(shared + STATICS + launch.shared, CANARY, MARGIN);
    for (u32 i = 0; i < n_threads(); i++) {
        Thread& thread = first[i];
        thread.done = false;
        thread.word = &ZERO, thread.parity = 1;
        thread.block = &block;
        thread.index = i;
        thread.copies.clear();
        thread.group = 0;
    }
}

void end_block(const Block& block) {
    const u8* margin = window + block.rank * SPAN + STATICS + launch.shared;
    for (u32 i = 0; i < MARGIN; i++)
        if (margin[i] != CANARY)
            fail("shared memory of %u bytes was written %u bytes behind its end", launch.shared, i);
    for (const Warpgroup& group : block.warpgroups)
        if (!group.products.empty()) fail("a block ended before products that it had begun");
    if (launch.programmatic && !(block.launched && block.waited))
        fail("a block ended without pdl_launch and pdl_wait");
}

void describe_waits() {
    std::string text = "no thread can go on:";
    const char* last = nullptr;
    for (const Thread& thread : threads) {
        if (thread.done || !thread.block) continue;
        if (thread.what == last || text.size() > 800) continue;
        char line[160];
        std::snprintf(line, sizeof(line), " block (%u, %u, %u) thread %u at %s;",
                      thread.block->index.x, thread.block->index.y, thread.block->index.z,
                      thread.index, thread.what);
        text += line;
        last = thread.what;
    }
    fail("%s", text.c_str());
}

void run_cluster(Dim first) {
    u32 n = n_threads();
    cluster_arrived = cluster_generation = 0;
    cluster_live = n * launch.cluster;
    for (u32 rank = 0; rank < launch.cluster; rank++) {
        blocks[rank].index = {first.x + rank, first.y, first.z};
        blocks[rank].rank = rank;
        start_block(blocks[rank], &threads[rank * n]);
    }
    u32 warps = n * launch.cluster / LANES;
    while (cluster_live) {
        bool moved = false;
        for (u32 w = 0; w < warps; w++) {
            Thread* warp = &threads[(launch.late ? warps - 1 - w : w) * LANES];
            for (bool again = true; again;) {
                again = false;
                for (int i = 0; i < LANES; i++) {
                    Thread& thread = warp[launch.late ? LANES - 1 - i : i];
                    if (thread.done || (*thread.word & 1) == thread.parity) continue;
                    resume(thread);
                    if (failed) return;
                    again = moved = true;
                }
            }
        }
        if (!moved && !deliver_one()) describe_waits();
    }
    while (deliver_one()) {
    }
    for (u32 rank = 0; rank < launch.cluster; rank++) end_block(blocks[rank]);
}

void prepare() {
    if (!window) {
        window = (u8*)std::aligned_alloc(SPAN, MOST_BLOCKS * SPAN);
        for (u32 i = 0; i < 65536; i++) {
            int exponent = i >> 10 & 31, mantissa = i & 1023;
            float x = exponent == 31 ? (mantissa ? NAN : INFINITY)
                      : exponent     ? std::ldexp(1024.0f + mantissa, exponent - 25)
                                     : std::ldexp((float)mantissa, -24);
            halves[i] = i >> 15 ? -x : x;
        }
    }
    std::size_t wanted = (std::size_t)n_threads() * launch.cluster;
    if (threads.size() < wanted) {
        // a started fiber stands where its jump buffer says: those are never moved
        for (Thread& thread : threads) thread.started = false;
        threads.resize(wanted);
        for (std::size_t i = 0; i < wanted; i++) {
            if (threads[i].stack) continue;
            u8* stack = (u8*)mmap(nullptr, GUARD + STACK, PROT_READ | PROT_WRITE,
                                  MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
            mprotect(stack, GUARD, PROT_NONE);
            threads[i].stack = stack + GUARD;
        }
    }
    for (Thread& thread : threads) thread.done = true;
    blocks.resize(launch.cluster);
    flying.clear();
    arrivals.clear();
    std::memset(statics, 0xff, sizeof(statics));
    statics_end = 0;
}

void run_grid() {
    u32 x = gridDim.x / launch.cluster, total = x * gridDim.y * gridDim.z;
    for (u32 i = 0; i < total && !failed; i++) {
        u32 at = launch.late ? total - 1 - i : i;
        run_cluster({at % x * launch.cluster, at / x % gridDim.y, at / x / gridDim.y});
    }
}

}  // namespace

float halves[65536];

void fail(const char* format, ...) {
    va_list arguments;
    va_start(arguments, format);
    char text[900];
    std::vsnprintf(text, sizeof(text), format, arguments);
    va_end(arguments);
    std::snprintf(message, sizeof(message), "%s (block %u, %u, %u, thread %u)", text, blockIdx.x,
                  blockIdx.y, blockIdx.z, threadIdx.x);
    failed = true;
    _longjmp(in_thread ? scheduler : outside, 1);
}

void wait(const u32* word, u32 parity, const char* what) {
    if ((*word & 1) != parity) return;
    current->word = word;
    current->parity = parity;
    current->what = what;
    yield();
    current->word = &ZERO, current->parity = 1;
}

namespace {
void meet_at(Meeting& meeting, int place, int size, void* mine, Work work, const char* what) {
    if (meeting.arrived && meeting.work != work)
        fail("lanes of a warp meet at %s and at %s", meeting.what, what);
    meeting.work = work, meeting.what = what;
    meeting.brought[place] = mine;
    if (++meeting.arrived < size)
        return wait((const u32*)&meeting.generation, meeting.generation & 1, what);
    meeting.arrived = 0;
    work(meeting.brought);
    meeting.generation++;
}
Warp& my_warp() { return current->block->warps[current->index / LANES]; }
Warpgroup& my_group() { return current->block->warpgroups[current->index / GROUP]; }
}  // namespace

void meet(void* mine, Work work, const char* what) {
    meet_at(my_warp().meeting, current->index % LANES, LANES, mine, work, what);
}

void meet_group(void* mine, Work work, const char* what) {
    meet_at(my_group().meeting, current->index % GROUP, GROUP, mine, work, what);
}

void block_barrier(int number, u32 count) {
    Block& block = *current->block;
    Named& named = block.named[count ? number : NAMED];
    if (!count) {
        u32 parity = named.generation & 1;
        named.arrived++;
        release_all(block);
        return wait(&named.generation, parity, "__syncthreads");
    }
    if (named.arrived && named.count != count)
        fail("barrier %d is for %u threads and for %u", number, named.count, count);
    named.count = count;
    u32 parity = named.generation & 1;
    if (++named.arrived == count) named.arrived = 0, named.generation++;
    wait(&named.generation, parity, "bar.sync");
}

void cluster_arrive() {
    current->cluster_parity = cluster_generation & 1;
    cluster_arrived++;
    release_cluster();
}
void cluster_wait() { wait(&cluster_generation, current->cluster_parity, "barrier.cluster"); }
u32 cluster_rank() { return current->block->rank; }

u32 address_of(const void* shared) {
    std::ptrdiff_t offset = (const u8*)shared - window;
    if (offset < 0 || offset >= (std::ptrdiff_t)(launch.cluster * SPAN))
        fail("an address outside of shared memory is taken as one in it");
    return (u32)offset;
}

void* shared_at(u32 address, u32 bytes, u32 alignment) {
    u32 offset = address % SPAN;
    if (address / SPAN >= launch.cluster || offset + bytes > STATICS + launch.shared)
        fail("%u bytes at the shared address %#x, of %u bytes", bytes, address, launch.shared);
    if (address % alignment) fail("the shared address %#x is not aligned to %u", address, alignment);
    return window + address;
}

u32 address_in(u32 address, u32 rank) {
    if (rank >= launch.cluster) fail("block %u of a cluster of %u", rank, launch.cluster);
    return address % SPAN + rank * SPAN;
}

void* dynamic_shared() { return window + current->block->rank * SPAN + STATICS; }

void* static_shared(int variable, std::size_t bytes, std::size_t alignment) {
    std::size_t& at = statics[variable];
    if (at == SIZE_MAX) {
        at = (statics_end + alignment - 1) / alignment * alignment;
        statics_end = at + bytes;
        if (statics_end > STATICS) fail("more than %u bytes of __shared__ variables", STATICS);
    }
    return window + current->block->rank * SPAN + at;
}

void barrier_init(u32 address, u32 count) {
    Mbarrier& barrier = barrier_at(address);
    barrier.phase = 0, barrier.count = barrier.arrivals = count, barrier.bytes = 0;
}

void barrier_arrive(u32 address, u32 expected_bytes) {
    live_barrier(address).bytes += (i32)expected_bytes;
    arrive(address);
}

void barrier_wait(u32 address, u32 parity) {
    wait((const u32*)&live_barrier(address), parity & 1, "mbarrier.try_wait");
}

void bulk_copy(u32 to, const void* from, u32 bytes, u32 barrier) {
    if (bytes % 16 || (u64)from % 16) fail("a bulk copy of %u bytes from %p", bytes, from);
    Copy copy = {to, from, bytes, bytes, barrier, -1};
    if (launch.late) flying.push_back(copy);
    else deliver(copy);
}

void copy_async(u32 to, const void* from, u32 bytes, u32 real) {
    if (real && (u64)from % bytes) fail("cp.async from %p", from);
    Copy copy = {to, from, bytes, real, 0, current->group};
    if (launch.late) current->copies.push_back(copy);
    else deliver(copy);
}

void copy_commit() { current->group++; }

void copy_wait(u32 pending) {
    std::vector<Copy> rest;
    for (const Copy& copy : current->copies) {
        if (copy.group + (int)pending < current->group) deliver(copy);
        else rest.push_back(copy);
    }
    current->copies = std::move(rest);
}

void copy_arrive(u32 barrier) {
    if (!launch.late) return arrive(barrier);
    arrivals.push_back({std::move(current->copies), barrier});
    current->copies.clear();
}

void product(const Product& p) {
    if (launch.late) my_group().products.push_back({p, my_warp().group});
    else multiply(p);
}

void products_commit() { my_warp().group++; }

void products_wait(u32 pending) {
    std::vector<Warpgroup::Pending>& products = my_group().products;
    std::size_t done = 0;
    for (; done < products.size(); done++) {
        if (products[done].group + (int)pending >= my_warp().group) break;
        multiply(products[done].product);
    }
    products.erase(products.begin(), products.begin() + done);
}

void pdl_launch() { current->block->launched = true; }
void pdl_wait() { current->block->waited = true; }

u16 half_of(double x, double rest) {
    u64 bits;
    if (rest != 0) {  // to odd, so that rounding again is right
        std::memcpy(&bits, &x, 8);
        if (!(bits & 1)) x = std::nextafter(x, rest > 0 ? INFINITY : -INFINITY);
    }
    u16 sign = std::signbit(x) ? 0x8000 : 0;
    double size = std::fabs(x);
    if (size != size) return 0x7fff;
    if (size >= 65520.0) return sign | 0x7c00;
    if (size < 0x1p-14) return sign | (u16)std::nearbyint(size * 0x1p24);
    int exponent;
    double mantissa = std::frexp(size, &exponent);  // in [0.5, 1)
    return sign | (u16)(((exponent + 13) << 10) + (int)std::nearbyint(mantissa * 2048) );
}

u16 half_fma(u16 a, u16 b, u16 c) {
    double product = (double)halves[a] * halves[b], other = halves[c], sum = product + other;
    if (!std::isfinite(sum)) return half_of(sum);
    double rounded = sum - product;
    return half_of(sum, (product - (sum - rounded)) + (other - rounded));
}

void multiply_halves(float (&c)[16][8], const float (&a)[16][16], const float (&b)[16][8]) {
    for (int row = 0; row < 16; row++) {
        float sums[8] = {};
        for (int k = 0; k < 16; k++)
            for (int n = 0; n < 8; n++) sums[n] += a[row][k] * b[k][n];
        for (int n = 0; n < 8; n++) c[row][n] += sums[n];
    }
}

extern "C" const char* emulated_launch(void (*entry)(const u64*), const u64* args, const u32* grid,
                                       u32 block, u32 shared, u32 cluster, int late,
                                       int programmatic) {
    launch = {entry, args, shared, cluster, late != 0, programmatic != 0};
    gridDim = {grid[0], grid[1], grid[2]};
    blockDim = {block, 1, 1};
    failed = in_thread = false;
    if (block % LANES || cluster > MOST_BLOCKS || STATICS + shared + MARGIN > SPAN)
        return "a launch that the emulator does not take";
    prepare();
    if (!_setjmp(outside)) run_grid();
    if (!failed) return nullptr;
    for (Thread& thread : threads) thread.started = false;  // they stand in the middle of a kernel
    return message;
}

}  // namespace emulated
