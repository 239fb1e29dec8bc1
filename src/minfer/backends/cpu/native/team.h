// The team of threads that runs a step, and a lane, one thread's view of it.
//
// A kernel is `void f(const Args&, const Lane&)`: every lane of the team calls it with the same
// arguments and does its share. Between the steps of a program the team passes a barrier; a kernel
// that needs one inside calls `lane.sync()`, which all lanes must then reach equally often.
//
// This header is read by translation units of every instruction set, so nothing in it may leave
// an out-of-line copy behind that another unit could pick up: definitions live in team.cpp.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

namespace minfer {

class Barrier;

// Half-open range of work items.
struct Range {
    int64_t begin;
    int64_t end;
};

struct Lane {
    int index;  // 0 is the calling thread
    int count;
    Barrier* barrier;

    // Wait until all lanes are here; what each wrote before is then visible to all.
    void sync() const;

    // This lane's share of `n` items: contiguous, sizes differ by at most one.
    [[gnu::always_inline]] Range share(int64_t n) const {
        return {n * index / count, n * (index + 1) / count};
    }
};

// A barrier for a fixed number of threads: spins while the others are near, then gives its core
// away, then sleeps.
class Barrier {
public:
    explicit Barrier(int count, bool crowded);
    void wait();

private:
    const int count_;
    const int spins_;  // polls before the core is offered to others
    alignas(64) std::atomic<int> arrived_{0};
    alignas(64) std::atomic<uint32_t> generation_{0};
    std::atomic<int> sleepers_{0};
};

// Work items handed out one by one, for items of unequal cost. Which lane computes an item must
// not matter for its result. The queue is ready again once every lane has been told the end.
class Queue {
public:
    // The next item, or -1 when all `n` are given out; then do not ask again in this step.
    int64_t next(int64_t n, const Lane& lane);

private:
    alignas(64) std::atomic<int64_t> next_{0};
    std::atomic<int> ended_{0};
};

// Threads that live as long as the backend and run one job at a time.
class Team {
public:
    // `count` lanes in all, the caller's thread among them; `cores` this process may use.
    Team(int count, int cores);
    ~Team();
    Team(const Team&) = delete;
    Team& operator=(const Team&) = delete;

    int count() const;

    using Job = void (*)(void* context, const Lane& lane);
    // Run `job` on every lane and return when all are done. One caller at a time.
    void run(Job job, void* context);

private:
    struct State;
    std::unique_ptr<State> state_;
};

}  // namespace minfer
