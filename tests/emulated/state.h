// A launch in progress, as `runtime.cpp` and `async.cpp` share it.
#pragma once
#include <csetjmp>
#include <ucontext.h>
#include <vector>

#include "races.h"

namespace emulated {

constexpr int NAMED = 16;
constexpr std::size_t STACK = 96 << 10;  // bytes of a thread's
constexpr u32 ZERO = 0;  // what a thread that may run waits for

struct Copy {
    u32 to;
    const void* from;
    u32 bytes, real, barrier;
    int group;  // of cp.async; -1 for a bulk copy, whose `barrier` gets the bytes
    u32 time;   // of a bulk copy
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
    Actor actor;
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
    Passed synced;
};

// Its four warps begin a product together and are done with it together.
struct Warpgroup {
    Meeting meeting;
    struct Pending {
        Product product;
        int group;
    };
    std::vector<Pending> products;
    Reader reader;
};

struct Named {
    u32 arrived = 0, generation = 0, count = 0;
    Passed passed;
};

struct Block {
    Dim index;
    u32 rank, live;
    bool launched, waited;
    std::vector<Warp> warps;
    std::vector<Warpgroup> warpgroups;
    Named named[NAMED + 1];  // the last one is for all threads
};

struct Launch {
    void (*entry)(const u64*);
    const u64* args;
    u32 shared, cluster;
    bool late;
    bool programmatic;
};

extern Launch launch;
extern Thread* current;
extern std::vector<Thread> threads;  // of the cluster, block by block
extern bool meeting;                 // in what a meeting does, for all who came
extern u8* window;  // shared memory of a cluster

// Completes one of the copies in flight; false if there is none.
bool deliver_one();
void forget_flights();  // and barriers
void fill_halves();

}  // namespace emulated
