// Team and barrier. Waiting goes through three stages: poll (tens of nanoseconds to answer), offer
// the core to others between polls (a neighbour or a crowded machine makes progress), sleep.

#include "team.h"

#include <sched.h>

#include <algorithm>
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
constexpr int kSpinsCrowded = 20;  // with more lanes than cores, waiting keeps others from working
// Yields before sleeping, within a job: about a millisecond.
constexpr int kYields = 2'000;
// Between jobs the host samples and schedules; sleeping would cost a wake-up (~50 us) a token.
constexpr int64_t kIdle = 2'000'000;

// Lanes are judged after this much work,
constexpr int64_t kWindow = 5'000'000;
// reduced when they wait more than this share of the time,
constexpr double kTooMuch = 0.35;
// and tried again after a pause that doubles as long as it does not help.
constexpr int64_t kFirstPause = 50'000'000;
constexpr int64_t kLastPause = 2'000'000'000;

int64_t now() {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(
               std::chrono::steady_clock::now().time_since_epoch())
        .count();
}

void relax() {
#if defined(__x86_64__)
    _mm_pause();
#elif defined(__aarch64__)
    asm volatile("isb");
#endif
}

}  // namespace

void Barrier::wait() {
    // Read before arriving: afterwards the others may go on to a job of another size.
    const int count = count_;
    if (count == 1) return;
    const uint32_t mine = generation_.load(std::memory_order_acquire);
    if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == count) {
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
    const int64_t start = now();
    for (int i = 0; i < kYields && !released(); ++i) sched_yield();
    if (!released()) {
        sleepers_.fetch_add(1, std::memory_order_seq_cst);
        generation_.wait(mine, std::memory_order_seq_cst);
        sleepers_.fetch_sub(1, std::memory_order_relaxed);
    }
    lost_.fetch_add(now() - start, std::memory_order_relaxed);
}

int64_t Barrier::take_lost() { return lost_.exchange(0, std::memory_order_relaxed); }

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

void Pace::note(int64_t begin, int64_t end, int64_t lost) {
    busy_ += end - begin;
    lost_ += lost;
    if (busy_ >= kWindow) {
        judge(end);
        busy_ = lost_ = 0;
    }
}

void Pace::judge(int64_t time) {
    // One lane that is away keeps all the others waiting.
    const bool too_much = count_ > 1 && double(lost_) > kTooMuch * double(busy_) * (count_ - 1);
    if (too_much) {
        count_ -= std::max(1, count_ / 8);
        pause_ = std::clamp(2 * pause_, kFirstPause, kLastPause);
        again_ = time + pause_;
    } else if (count_ == most_) {
        pause_ = 0;
    } else if (time >= again_) {
        count_ = most_;
    }
}

struct Team::State {
    struct alignas(64) Worker {
        std::thread thread;
        std::atomic<uint32_t> calls{0};  // bumped when there is a job for it, or at the end
        std::atomic<bool> asleep{false};
    };

    State(int most, int cores)
        : barrier(most > cores ? kSpinsCrowded : kSpins), pace(most), workers(most - 1) {}

    Barrier barrier;
    Pace pace;
    std::vector<Worker> workers;  // worker i is lane i + 1
    Job job = nullptr;
    void* context = nullptr;
    int count = 1;  // lanes of the job
    std::atomic<bool> stopping{false};

    static void call(Worker& worker) {
        worker.calls.fetch_add(1, std::memory_order_seq_cst);
        if (worker.asleep.load(std::memory_order_seq_cst)) worker.calls.notify_one();
    }

    static void await(Worker& worker, uint32_t seen) {
        const auto called = [&] { return worker.calls.load(std::memory_order_acquire) != seen; };
        for (int i = 0; i < kSpins; ++i) {
            if (called()) return;
            relax();
        }
        const int64_t deadline = now() + kIdle;
        while (now() < deadline) {
            if (called()) return;
            sched_yield();
        }
        worker.asleep.store(true, std::memory_order_seq_cst);
        worker.calls.wait(seen, std::memory_order_seq_cst);
        worker.asleep.store(false, std::memory_order_relaxed);
    }

    void work(int index) {
        Worker& worker = workers[index - 1];
        for (uint32_t seen = 0;; ++seen) {
            await(worker, seen);
            if (stopping.load(std::memory_order_acquire)) return;
            job(context, Lane{index, count, &barrier});
            barrier.wait();
        }
    }
};

Team::Team(int count, int cores) : state_(std::make_unique<State>(count, cores)) {
    for (int i = 1; i < count; ++i) {
        state_->workers[i - 1].thread = std::thread([s = state_.get(), i] { s->work(i); });
    }
}

Team::~Team() {
    state_->stopping.store(true, std::memory_order_release);
    for (auto& worker : state_->workers) State::call(worker);
    for (auto& worker : state_->workers) worker.thread.join();
}

int Team::count() const { return int(state_->workers.size()) + 1; }

void Team::run(Job job, void* context) {
    State& s = *state_;
    const int64_t begin = now();
    s.job = job;
    s.context = context;
    s.count = s.pace.count();
    s.barrier.set_count(s.count);
    for (int i = 1; i < s.count; ++i) State::call(s.workers[i - 1]);
    job(context, Lane{0, s.count, &s.barrier});
    s.barrier.wait();
    s.pace.note(begin, now(), s.barrier.take_lost());
}

}  // namespace minfer
