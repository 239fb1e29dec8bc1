// The accesses of kernels, as they are told to `races.cpp`. Kernels are compiled with the
// instrumentation of a thread sanitizer, which calls a function of these at each; what is not an
// access like any other (`runtime.h`) is told by the instruction itself.
#include "state.h"

namespace emulated {

namespace {
void watched(const void* at, u32 bytes, races::Kind kind, const void* code, bool ahead = false) {
    if (!meeting && !launch.late) races::access(current->actor, at, bytes, kind, code, ahead);
}
}  // namespace

void counted(const void* at, u32 bytes) {
    watched(at, bytes, races::ATOMIC, __builtin_return_address(0));
}
void have_read(const void* at, u32 bytes) {
    watched(at, bytes, races::READ, __builtin_return_address(0));
}
void read_ahead(const void* at, u32 bytes) {
    watched(at, bytes, races::READ, __builtin_return_address(0), true);
}
void pass_on(const void* counter) { races::exchange(current->actor, (u64)counter); }
void publish() { races::publish(current->actor); }

extern "C" {
void emulated_memory(const u64* pairs, int n) { races::begin_list(pairs, n); }

#define WATCHED(SIZE)                                                            \
    void __tsan_read##SIZE(void* p) {                                            \
        watched(p, SIZE, races::READ, __builtin_return_address(0));              \
    }                                                                            \
    void __tsan_write##SIZE(void* p) {                                           \
        watched(p, SIZE, races::WRITE, __builtin_return_address(0));             \
    }                                                                            \
    void __tsan_unaligned_read##SIZE(void* p) {                                  \
        watched(p, SIZE, races::READ, __builtin_return_address(0));              \
    }                                                                            \
    void __tsan_unaligned_write##SIZE(void* p) {                                 \
        watched(p, SIZE, races::WRITE, __builtin_return_address(0));             \
    }
WATCHED(1)
WATCHED(2)
WATCHED(4)
WATCHED(8)
WATCHED(16)
void __tsan_read_range(void* p, unsigned long n) {
    watched(p, n, races::READ, __builtin_return_address(0));
}
void __tsan_write_range(void* p, unsigned long n) {
    watched(p, n, races::WRITE, __builtin_return_address(0));
}
void __tsan_init() {}
}

}  // namespace emulated
