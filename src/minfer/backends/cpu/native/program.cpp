// The loop over the steps of a program, and what it checks before and after.

#include "program.h"

#include <chrono>
#include <stdexcept>

namespace minfer {

void Program::check_counts() {
    for (size_t i = 0; i < count_limits_.size(); ++i) {
        fault_.check("counts: rows", counts_[i], int64_t(count_limits_[i]) + 1);
    }
    fault_.raise();
}

void Program::run() {
    check_counts();
    team_->run(
        [](void* context, const Lane& lane) {
            for (const Step& step : static_cast<Program*>(context)->steps_) {
                step.call(step.holder, lane);
                if (step.barrier) lane.sync();
            }
        },
        this);
    fault_.raise();
}

std::vector<int64_t> Program::profile() {
    check_counts();
    times_.assign(steps_.size(), 0);
    team_->run(
        [](void* context, const Lane& lane) {
            auto* self = static_cast<Program*>(context);
            for (size_t i = 0; i < self->steps_.size(); ++i) {
                const auto start = std::chrono::steady_clock::now();
                self->steps_[i].call(self->steps_[i].holder, lane);
                lane.sync();
                if (lane.index == 0) {
                    self->times_[i] = std::chrono::nanoseconds(
                        std::chrono::steady_clock::now() - start).count();
                }
            }
        },
        this);
    fault_.raise();
    return times_;
}

void Fault::report(const char* what, int64_t value, int64_t limit) {
    if (noted_.exchange(true)) return;
    what_ = what;
    value_ = value;
    limit_ = limit;
}

void Fault::raise() {
    if (!noted_.exchange(false)) return;
    throw std::runtime_error(std::string(what_) + " " + std::to_string(value_) +
                             " is out of range: the limit is " + std::to_string(limit_));
}

}  // namespace minfer
