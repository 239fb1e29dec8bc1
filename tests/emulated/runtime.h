// What emulated kernels stand on: threads of a block as fibers, meetings of a warp, waits, shared
// memory, failures. The instructions themselves are in `cuda.h` and `ptx.h`.
#pragma once
#include <array>
#include <cstddef>
#include <cstring>

typedef signed char i8;
typedef unsigned char u8;
typedef unsigned short u16;
typedef int i32;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long i64;

namespace emulated {

constexpr int LANES = 32, GROUP = 128;  // threads of a warp, of a warpgroup
constexpr u32 SPAN = 0x40000;      // from a block's shared memory to that of the next of a cluster
constexpr u32 STATICS = 0x4000;    // of it, what `__shared__` variables have

struct Dim {
    u32 x, y, z;
};

// Ends the launch with a message; nothing of the kernel runs on.
[[noreturn]] void fail(const char* format, ...) __attribute__((format(printf, 1, 2)));

// Lets others run until bit 0 of `word` is not `parity`.
void wait(const u32* word, u32 parity, const char* what);

// All lanes of a warp, or of a warpgroup, bring something; the last to come does `work` on what all
// brought, and then every lane goes on. It is an error if lanes meet with different work.
using Brought = void* const*;
using Work = void (*)(Brought);
void meet(void* mine, Work work, const char* what);
void meet_group(void* mine, Work work, const char* what);
void warp_barrier();

// A block's named barrier, for `count` threads, or for all that have not returned if that is 0.
void block_barrier(int number, u32 count);
void block_arrive(int number, u32 count);  // counts, and does not wait
void cluster_arrive(bool releases);
void cluster_wait(bool acquires);

// Shared memory: addresses are offsets into that of the cluster.
u32 address_of(const void* shared);
void* shared_at(u32 address, u32 bytes, u32 alignment);
u32 address_in(u32 address, u32 rank);
void* dynamic_shared();
void* static_shared(int variable, std::size_t bytes, std::size_t alignment);

// Accesses that the compiler's instrumentation does not show as what they are (`races.cpp`).
void counted(const void* at, u32 bytes);     // changed atomically
void have_read(const void* at, u32 bytes);   // by this thread
void read_ahead(const void* at, u32 bytes);  // perhaps too early
void pass_on(const void* counter);           // what is known, by an atomic release and acquire
void there(const void* from, u32 bytes);     // can be read
void publish();                              // `fence.proxy.async`

// Copies and products that run beside the threads.
void barrier_init(u32 barrier, u32 count);
void barrier_arrive(u32 barrier, u32 expected_bytes);
void barrier_wait(u32 barrier, u32 parity);
void bulk_copy(u32 to, const void* from, u32 bytes, u32 barrier);
void copy_async(u32 to, const void* from, u32 bytes, u32 real);
void copy_commit();
void copy_wait(u32 pending);
void copy_arrive(u32 barrier);
struct Product {  // of a warpgroup: m64nNk16
    float* sums[GROUP];
    int n;
    bool from_registers, keep, values;
    const u32* registers[4][GROUP];  // read when it is done, as the sums are
    u64 a, b;
};
void product(const Product& product);  // by the last of a warpgroup to come
void products_commit();
void products_wait(u32 pending);
void products_waited(u32 pending);  // by every lane, after it

void pdl_launch();
void pdl_wait();

// Halves.
extern float halves[65536];
inline float half_value(u16 half) { return halves[half]; }
u16 half_of(double x, double rest = 0);  // nearest even of x + rest, |rest| far below |x|
u16 half_fma(u16 a, u16 b, u16 c);

void multiply_halves(float (&c)[16][8], const float (&a)[16][16], const float (&b)[16][8]);

// Calls a kernel with arguments of 8 bytes each, whatever their type.
template <class T>
T argument(const u64& raw) {
    T value;
    std::memcpy(&value, &raw, sizeof(T));
    return value;
}
template <class... P>
struct Entry {
    static constexpr int count = sizeof...(P);
    template <std::size_t... I>
    static void call(void (*kernel)(P...), const u64* raw, std::index_sequence<I...>) {
        kernel(argument<P>(raw[I])...);
    }
};
template <class... P>
void call(void (*kernel)(P...), const u64* raw) {
    Entry<P...>::call(kernel, raw, std::index_sequence_for<P...>());
}
// Bytes of each parameter.
template <class... P>
void sizes(void (*)(P...), int* to) {
    int all[] = {(int)sizeof(P)..., 0};
    std::memcpy(to, all, sizeof(all));
}

}  // namespace emulated

extern emulated::Dim threadIdx, blockIdx, blockDim, gridDim;
