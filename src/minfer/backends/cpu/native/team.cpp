// Team and barrier. Waiting goes through three stages: poll (tens of nanoseconds to answer), offer
// the core to others between polls (a neighbour or a crowded machine makes progress), sleep.

#include "team.h"

#include <sched.h>

#include <chrono>
#include <thread>
#include <vector>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace minfer {
namespace {

// A poll with `pause` takes 15-40 ns: 2,000 of them cover the usual imbalance between lanes.
constexpr int kSpins = 2'000;
constexpr int kSpinsCrowded = 20;
// Yields before sleeping, within a step: longer than a time slice rarely pays.
constexpr int kYieldsInStep = 2'000;
// Between steps the host samples and schedules; sleeping would cost a wake-up (~50 us) a token.
constexpr auto kIdle = std::chrono::milliseconds(2);

void relax() {
#if defined(__x86_64__)
    _mm_pause();
#elif defined(__aarch64__)
    asm volatile("isb");
#endif
}

}  // namespace

Barrier::Barrier(int count, bool crowded)
    : count_(count), spins_(crowded ? kSpinsCrowded : kSpins) {}

void Barrier::wait() {
    if (count_ == 1) return;
    const uint32_t mine = generation_.load(std::memory_order_acquire);
    if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == count_) {
        arrived_.store(0, std::memory_order_relaxed);
        generation_.store(mine + 1, std::memory_order_seq_cst);
        if (sleepers_.load(std::memory_order_seq_cst) > 0) generation_.notify_all();
        return;
    }
    const auto released = [&] { return generation_.load(std::memory_order_acquire) != mine; };
    for (int i = 0; i < spins_; ++i) {
        if (released()) return;
        relax();
    }
    for (int i = 0; i < kYieldsInStep; ++i) {
        if (released()) return;
        sched_yield();
    }
    sleepers_.fetch_add(1, std::memory_order_seq_cst);
    generation_.wait(mine, std::memory_order_seq_cst);
    sleepers_.fetch_sub(1, std::memory_order_relaxed);
}

void Lane::sync() const { barrier->wait(); }

int64_t Queue::next(int64_t n, const Lane& lane) {
    const int64_t item = next_.fetch_add(1, std::memory_order_relaxed);
    if (item < n) return item;
    if (ended_.fetch_add(1, std::memory_order_acq_rel) + 1 == lane.count) {
        next_.store(0, std::memory_order_relaxed);
        ended_.store(0, std::memory_order_relaxed);
    }
    return -1;
}

struct Team::State {
    State(int count, int cores) : barrier(count, count > cores), count(count) {}

    Barrier barrier;
    const int count;
    std::vector<std::thread> workers;
    Job job = nullptr;
    void* context = nullptr;
    alignas(64) std::atomic<uint32_t> epoch{0};  // bumped when a job is ready, or at the end
    std::atomic<int> sleepers{0};
    std::atomic<bool> stopping{false};

    void announce() {
        epoch.fetch_add(1, std::memory_order_seq_cst);
        if (sleepers.load(std::memory_order_seq_cst) > 0) epoch.notify_all();
    }

    void await(uint32_t seen) {
        const auto changed = [&] { return epoch.load(std::memory_order_acquire) != seen; };
        for (int i = 0; i < kSpins; ++i) {
            if (changed()) return;
            relax();
        }
        const auto deadline = std::chrono::steady_clock::now() + kIdle;
        while (std::chrono::steady_clock::now() < deadline) {
            if (changed()) return;
            sched_yield();
        }
        sleepers.fetch_add(1, std::memory_order_seq_cst);
        epoch.wait(seen, std::memory_order_seq_cst);
        sleepers.fetch_sub(1, std::memory_order_relaxed);
    }

    void work(int index) {
        const Lane lane{index, count, &barrier};
        for (uint32_t seen = 0;; ++seen) {
            await(seen);
            if (stopping.load(std::memory_order_acquire)) return;
            job(context, lane);
            barrier.wait();
        }
    }
};

Team::Team(int count, int cores) : state_(std::make_unique<State>(count, cores)) {
    state_->workers.reserve(count - 1);
    for (int i = 1; i < count; ++i) {
        state_->workers.emplace_back([state = state_.get(), i] { state->work(i); });
    }
}

Team::~Team() {
    state_->stopping.store(true, std::memory_order_release);
    state_->announce();
    for (auto& worker : state_->workers) worker.join();
}

int Team::count() const { return state_->count; }

void Team::run(Job job, void* context) {
    state_->job = job;
    state_->context = context;
    state_->announce();
    job(context, Lane{0, state_->count, &state_->barrier});
    state_->barrier.wait();
}

}  // namespace minfer
