// What runs beside the threads: barriers that count bytes, copies, products of warpgroups.
//
// By the early schedule copies and products are done where they are issued; by the late one copies
// wait until no thread can go on without (the last issued first), and products until the wait.
#include <algorithm>
#include <unordered_map>

#include "state.h"

namespace emulated {
namespace {

struct Mbarrier {
    u32 phase : 1, count : 15, arrivals : 16;  // arrivals still to come
    i32 bytes;                                 // still to come
};
static_assert(sizeof(Mbarrier) == 8);

struct Arrival {  // when a thread's copies so far are done
    std::vector<Copy> copies;
    u32 barrier;
};

std::unordered_map<u32, Passed> barriers;  // by address
std::vector<Copy> flying;
std::vector<Arrival> arrivals;

Warp& my_warp() { return current->block->warps[current->index / LANES]; }
Warpgroup& my_group() { return current->block->warpgroups[current->index / GROUP]; }

Mbarrier& barrier_at(u32 address) {
    return *(Mbarrier*)shared_at(address, sizeof(Mbarrier), sizeof(Mbarrier));
}

Mbarrier& live_barrier(u32 address) {
    Mbarrier& barrier = barrier_at(address);
    if (barrier.count == 0x7fff) fail("the barrier at %#x was not initialised", address);
    return barrier;
}

void settle(Mbarrier& barrier, u32 address) {
    if (barrier.arrivals || barrier.bytes) return;
    barrier.phase ^= 1;
    barrier.arrivals = barrier.count;
    races::complete(barriers[address], false);
}

void arrive(u32 address) {
    Mbarrier& barrier = live_barrier(address);
    if (!barrier.arrivals) fail("one arrival too many at the barrier %#x", address);
    barrier.arrivals--;
    settle(barrier, address);
}

void deliver(const Copy& copy) {
    u8* to = (u8*)shared_at(copy.to, copy.bytes, 16);
    std::memcpy(to, copy.from, copy.real);
    std::memset(to + copy.real, 0, copy.bytes - copy.real);
    if (copy.group >= 0) return;
    Mbarrier& barrier = live_barrier(copy.barrier);
    barrier.bytes -= (i32)copy.bytes;
    races::bulk_ends(barriers[copy.barrier], copy.time);
    settle(barrier, copy.barrier);
}

// Where what is at an address of an operand lies, by the 128-byte swizzle.
const void* swizzled(u32 address) { return window + (address ^ (address >> 7 & 7) << 4); }
u16 half_at(u32 address) { return *(const u16*)swizzled(address); }

// Where a descriptor's operand begins, as an address of this block.
u32 operand_of(u64 descriptor) {
    u32 start = (u32)(descriptor & 0x3fff) << 4;
    if (descriptor >> 62 != 1) fail("an operand without the 128-byte swizzle");
    if (start & 0x380) fail("an operand at %#x: not at a row that is a multiple of 8", start);
    return current->block->rank * SPAN + start;
}

// The address of an operand's value: A [row][k], B [n][k] or, as values, [k][n].
struct Operands {
    const Product& p;
    u32 a = p.from_registers ? 0 : operand_of(p.a), b = operand_of(p.b);

    static u32 stride(u64 descriptor) { return (u32)(descriptor >> 32 & 0x3fff) << 4; }
    u32 a_at(u32 row, u32 k) const { return a + row / 8 * stride(p.a) + row % 8 * 128 + k * 2; }
    u32 b_at(u32 n, u32 k) const {
        if (!p.values) return b + n / 8 * stride(p.b) + n % 8 * 128 + k * 2;
        u32 band = (u32)(p.b >> 16 & 0x3fff) << 4;
        return b + n / 64 * band + k / 8 * stride(p.b) + k % 8 * 128 + n % 64 * 2;
    }
};

void multiply(const Product& p) {
    Operands at = {p};
    static float a[64][16], b[16][256], sums[64][256];
    for (int row = 0; row < 64; row++)
        for (int k = 0; k < 16; k++) {
            if (p.from_registers) {
                int lane = row / 16 * LANES + row % 8 * 4 + k % 8 / 2;
                u32 word = *p.registers[row % 16 / 8 + k / 8 * 2][lane];
                a[row][k] = halves[k % 2 ? word >> 16 : word & 0xffff];
            } else {
                a[row][k] = halves[half_at(at.a_at(row, k))];
            }
        }
    for (int k = 0; k < 16; k++)
        for (int n = 0; n < p.n; n++) b[k][n] = halves[half_at(at.b_at(n, k))];
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

}  // namespace

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

void forget_flights() {
    flying.clear();
    arrivals.clear();
    barriers.clear();
}

void barrier_init(u32 address, u32 count) {
    Mbarrier& barrier = barrier_at(address);
    races::access(current->actor, &barrier, 8, races::WRITE, __builtin_return_address(0));
    barriers[address] = {};
    barrier.phase = 0, barrier.count = barrier.arrivals = count, barrier.bytes = 0;
}

void barrier_arrive(u32 address, u32 expected_bytes) {
    Mbarrier& barrier = live_barrier(address);
    races::uses(current->actor, barriers[address], &barrier, __builtin_return_address(0));
    races::release(current->actor, barriers[address]);
    barrier.bytes += (i32)expected_bytes;
    arrive(address);
}

void barrier_wait(u32 address, u32 parity) {
    Mbarrier& barrier = live_barrier(address);
    races::uses(current->actor, barriers[address], &barrier, __builtin_return_address(0));
    wait((const u32*)&barrier, parity & 1, "mbarrier.try_wait");
    races::acquire(current->actor, barriers[address]);
}

void bulk_copy(u32 to, const void* from, u32 bytes, u32 barrier) {
    if (bytes % 16 || (u64)from % 16) fail("a bulk copy of %u bytes from %p", bytes, from);
    u32 time = races::bulk_begins(current->actor, barriers[barrier], &live_barrier(barrier), from,
                                  shared_at(to, bytes, 16), bytes, __builtin_return_address(0));
    Copy copy = {to, from, bytes, bytes, barrier, -1, time};
    if (launch.late) flying.push_back(copy);
    else deliver(copy);
}

void copy_async(u32 to, const void* from, u32 bytes, u32 real) {
    if (real && (u64)from % bytes) fail("cp.async from %p", from);
    races::copy_begins(current->actor, from, real, shared_at(to, bytes, 16), bytes,
                       __builtin_return_address(0));
    Copy copy = {to, from, bytes, real, 0, current->group, 0};
    if (launch.late) current->copies.push_back(copy);
    else deliver(copy);
}

void copy_commit() {
    current->group++;
    races::copy_group_ends(current->actor);
}

void copy_wait(u32 pending) {
    std::vector<Copy> rest;
    for (const Copy& copy : current->copies) {
        if (copy.group + (int)pending < current->group) deliver(copy);
        else rest.push_back(copy);
    }
    current->copies = std::move(rest);
    races::copies_awaited(current->actor, (u32)std::max(0, current->group - (int)pending));
}

void copy_arrive(u32 barrier) {
    races::copies_arrive(current->actor, barriers[barrier]);
    if (!launch.late) return arrive(barrier);
    arrivals.push_back({std::move(current->copies), barrier});
    current->copies.clear();
}

namespace {
// What a product reads of shared memory.
void read_operands(const Product& p) {
    Block& block = *current->block;
    u32 first = block.rank * blockDim.x + current->index / GROUP * GROUP;
    Actor* warps[4];
    for (int i = 0; i < 4; i++) warps[i] = &threads[first + i * LANES].actor;
    auto read = [&](u32 address) {
        races::product_reads(my_group().reader, warps, swizzled(address), 16, my_warp().group);
    };
    Operands at = {p};
    for (u32 row = 0; row < 64 && !p.from_registers; row++)
        for (u32 k = 0; k < 16; k += 8) read(at.a_at(row, k));
    for (u32 n = 0; n < (u32)p.n; n += p.values ? 8 : 1)
        for (u32 k = 0; k < 16; k += p.values ? 1 : 8) read(at.b_at(n, k));
}
}  // namespace

void product(const Product& p) {
    read_operands(p);
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

void products_waited(u32 pending) {
    int groups = my_warp().group - (int)pending;
    if (groups > 0) races::products_awaited(current->actor, my_group().reader, groups);
}

void there(const void* from, u32 bytes) {
    volatile u8 ends = *(const u8*)from ^ ((const u8*)from)[bytes - 1];
    (void)ends;
}

}  // namespace emulated
