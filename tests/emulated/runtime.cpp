// The emulated multiprocessor: runs a launch cluster by cluster, every thread a fiber.
//
// A fiber runs until it has to wait; what it waits for is always that bit 0 of some word changes,
// so the scheduler knows whom to resume without asking. Two schedules, both of which hardware may
// choose: EARLY takes warps in order and completes copies and products where they are issued; LATE
// takes everything in reverse and completes them as late as may be: copies when no thread can go on
// without, products at the wait for them. What races shows in one or the other.
//
// A launch that overlaps the one before begins with memory as that found it. Once all threads of
// the first cluster wait, for its end or for each other, `before_ends` makes memory what it left.
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <sys/mman.h>

#include "state.h"

emulated::Dim threadIdx, blockIdx, blockDim, gridDim;

namespace emulated {

Launch launch;
Thread* current;
std::vector<Thread> threads;
bool meeting;
u8* window;

namespace {

constexpr std::size_t GUARD = 4 << 10;
constexpr u32 MARGIN = 4 << 10;  // behind dynamic shared memory, watched
constexpr u8 POISON = 0xff, CANARY = 0xa5;
constexpr int MOST_BLOCKS = 16;

std::jmp_buf scheduler, outside;
bool in_thread;
std::vector<Block> blocks;
std::size_t statics[64], statics_end;
u32 cluster_arrived, cluster_generation, cluster_live;
Passed cluster_passed;
bool failed;
char message[1024];

u32 n_threads() { return blockDim.x; }

void yield() {
    if (!_setjmp(current->at)) _longjmp(scheduler, 1);
}

void release_all(Block& block) {
    Named& all = block.named[NAMED];
    if (!block.live || all.arrived < block.live) return;
    all.arrived = 0, all.generation++;
    races::complete(all.passed, true);
}
void release_cluster() {
    if (!cluster_live || cluster_arrived < cluster_live) return;
    cluster_arrived = 0, cluster_generation++;
    races::complete(cluster_passed, true);
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

void start_block(Block& block, Thread* first) {
    block.live = n_threads();
    block.launched = block.waited = false;
    block.warps.assign(n_threads() / LANES, {});
    block.warpgroups.assign((n_threads() + GROUP - 1) / GROUP, {});
    for (Named& named : block.named) named = {};
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
        races::begin_thread(thread.actor, 1 + block.rank * n_threads() + i);
    }
}

void end_block(const Block& block) {
    const u8* margin = window + block.rank * SPAN + STATICS + launch.shared;
    for (u32 i = 0; i < MARGIN; i++)
        if (margin[i] != CANARY)
            fail("shared memory of %u bytes was written %u bytes behind its end", launch.shared, i);
    for (const Warpgroup& group : block.warpgroups)
        if (!group.products.empty()) fail("a block ended before products that it had begun");
    for (int i = 0; i < NAMED; i++)
        if (block.named[i].arrived)
            fail("a block ended with %u of %u threads at barrier %d", block.named[i].arrived,
                 block.named[i].count, i);
    if (launch.programmatic && !(block.launched && block.waited))
        fail("a block ended without pdl_launch and pdl_wait");
}

void (*before_ends)();  // null where nothing overlaps
u32 over;               // whether it was called

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
    cluster_passed = {};
    forget_flights();
    races::begin_cluster();
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
        if (!moved && !deliver_one()) {
            if (!before_ends || over) describe_waits();
            over = 1, before_ends();
        }
    }
    while (deliver_one()) {
    }
    races::end_cluster();
    for (u32 rank = 0; rank < launch.cluster; rank++) end_block(blocks[rank]);
}

void prepare() {
    if (!window) {
        window = (u8*)std::aligned_alloc(SPAN, MOST_BLOCKS * SPAN);
        fill_halves();
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
    meeting = false;
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
    emulated::meeting = true;
    work(meeting.brought);
    emulated::meeting = false;
    meeting.generation++;
}
}  // namespace

void meet(void* mine, Work work, const char* what) {
    auto& warp = current->block->warps[current->index / LANES];
    meet_at(warp.meeting, current->index % LANES, LANES, mine, work, what);
}

void meet_group(void* mine, Work work, const char* what) {
    auto& group = current->block->warpgroups[current->index / GROUP];
    meet_at(group.meeting, current->index % GROUP, GROUP, mine, work, what);
}

void warp_barrier() {
    Passed& synced = current->block->warps[current->index / LANES].synced;
    races::release(current->actor, synced);
    auto complete = [](Brought) {
        races::complete(current->block->warps[current->index / LANES].synced, true);
    };
    meet(nullptr, complete, "__syncwarp");
    races::take(current->actor, synced);
}

void block_barrier(int number, u32 count) {
    Block& block = *current->block;
    Named& named = block.named[count ? number : NAMED];
    u32 parity = named.generation & 1;
    if (count) {
        block_arrive(number, count);
    } else {
        races::release(current->actor, named.passed);
        named.arrived++;
        release_all(block);
    }
    wait(&named.generation, parity, count ? "bar.sync" : "__syncthreads");
    races::take(current->actor, named.passed);
}

void block_arrive(int number, u32 count) {
    Named& named = current->block->named[number];
    if (named.arrived && named.count != count)
        fail("barrier %d is for %u threads and for %u", number, named.count, count);
    named.count = count;
    races::release(current->actor, named.passed);
    if (++named.arrived < count) return;
    named.arrived = 0, named.generation++;
    races::complete(named.passed, true);
}

void cluster_arrive(bool releases) {
    current->cluster_parity = cluster_generation & 1;
    if (releases) races::release(current->actor, cluster_passed);
    cluster_arrived++;
    release_cluster();
}
void cluster_wait(bool acquires) {
    wait(&cluster_generation, current->cluster_parity, "barrier.cluster");
    if (acquires) races::take(current->actor, cluster_passed);
}

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
    if (!blocks[address / SPAN].live) fail("shared memory of a block that has ended");
    if (address % alignment)
        fail("the shared address %#x is not aligned to %u", address, alignment);
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

void pdl_launch() { current->block->launched = true; }
void pdl_wait() {
    current->block->waited = true;
    if (before_ends) wait(&over, 0, "griddepcontrol.wait");
    races::launch_before(current->actor);
}

extern "C" const char* emulated_launch(void (*entry)(const u64*), const u64* args, const u32* grid,
                                       u32 block, u32 shared, u32 cluster, int late,
                                       int programmatic, int overlaps, void (*ends)()) {
    launch = {entry, args, shared, cluster, late != 0, programmatic != 0};
    gridDim = {grid[0], grid[1], grid[2]};
    blockDim = {block, 1, 1};
    failed = in_thread = false;
    before_ends = ends, over = 0;
    if (block % LANES || cluster > MOST_BLOCKS || STATICS + shared + MARGIN > SPAN)
        return "a launch that the emulator does not take";
    prepare();
    races::begin_launch(overlaps != 0);
    if (!_setjmp(outside)) run_grid();
    if (!failed) return nullptr;
    for (Thread& thread : threads) thread.started = false;  // they stand in the middle of a kernel
    return message;
}

}  // namespace emulated
