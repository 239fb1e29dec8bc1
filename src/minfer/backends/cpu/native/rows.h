// Which rows of a buffer are real in this step. Kernels work on real rows only.
#pragma once

#include <atomic>
#include <cstdint>

namespace minfer {

// The real rows of one step, resolved: the first `singles` places, and `others` places from
// `single_places` on.
struct RealRows {
    int64_t singles;
    int64_t others;
    int64_t single_places;

    [[gnu::always_inline]] int64_t total() const { return singles + others; }
    // Place of the i-th real row.
    [[gnu::always_inline]] int64_t place(int64_t i) const {
        return i < singles ? i : single_places + (i - singles);
    }
};

// How to find the real rows of a buffer when a step runs.
struct Rows {
    // The graph's input `counts` (single rows, other rows, output rows); null: all are real.
    const int32_t* counts = nullptr;
    int64_t places = 0;
    int64_t single_places = 0;
    bool outputs = false;  // the rows are output rows: the first counts[2] are real

    [[gnu::always_inline]] RealRows real() const {
        if (!counts) return {single_places, places - single_places, single_places};
        if (!outputs) return {counts[0], counts[1], single_places};
        const int64_t n = counts[2];
        const int64_t singles = n < single_places ? n : single_places;
        return {singles, n - singles, single_places};
    }
};

// The first invariant a kernel found broken in a step. The kernel leaves the row out; the step
// fails when it has ended.
class Fault {
public:
    // Whether `value` is in [0, limit); otherwise it is noted with `what`, a literal.
    [[gnu::always_inline]] bool check(const char* what, int64_t value, int64_t limit) {
        if (value >= 0 && value < limit) return true;
        report(what, value, limit);
        return false;
    }
    void report(const char* what, int64_t value, int64_t limit);
    // Throw std::runtime_error if something was noted, and forget it.
    void raise();

private:
    std::atomic<bool> noted_{false};
    const char* what_ = nullptr;
    int64_t value_ = 0;
    int64_t limit_ = 0;
};

}  // namespace minfer
