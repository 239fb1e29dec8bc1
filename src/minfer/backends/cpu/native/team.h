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

// A barrier: spins while the others are near, then gives its core away, then sleeps.
class Barrier {
public:
    explicit Barrier(int spins) : spins_(spins) {}
    // Threads that meet; only while nobody waits.
    void set_count(int count) { count_ = count; }
    void wait();
    // Nanoseconds that threads have waited past the first stage since the last call.
    int64_t take_lost();

private:
    int count_ = 1;
    const int spins_;  // polls before the core is offered to others
    alignas(64) std::atomic<int> arrived_{0};
    alignas(64) std::atomic<uint32_t> generation_{0};
    std::atomic<int> sleepers_{0};
    std::atomic<int64_t> lost_{0};
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

// How many lanes to use, given how much they wait for one another.
//
// Lanes meet hundreds of times a token. When another program takes a core, the lane on it is away
// for a time slice while the others wait: two lanes can then be ten times slower than one. So the
// lanes are reduced while they lose too much, and tried again after a while. Results do not depend
// on their number.
class Pace {
public:
    explicit Pace(int most) : most_(most), count_(most) {}
    int count() const { return count_; }
    // A job ran on `count()` lanes from `begin` to `end`; they waited `lost`. In nanoseconds.
    void note(int64_t begin, int64_t end, int64_t lost);

private:
    void judge(int64_t now);

    const int most_;
    int count_;
    int64_t busy_ = 0, lost_ = 0;  // of the jobs since the last judgement
    int64_t again_ = 0;            // when to try more lanes
    int64_t pause_ = 0;            // how long the last reduction was to last
};

// Threads that live as long as the backend and run one job at a time.
class Team {
public:
    // At most `count` lanes, the caller's thread among them; `cores` this process may use.
    Team(int count, int cores);
    ~Team();
    Team(const Team&) = delete;
    Team& operator=(const Team&) = delete;

    int count() const;

    using Job = void (*)(void* context, const Lane& lane);
    // Run `job` on some of the lanes and return when all are done. One caller at a time.
    void run(Job job, void* context);

private:
    struct State;
    std::unique_ptr<State> state_;
};

}  // namespace minfer
