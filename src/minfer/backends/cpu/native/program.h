// A program: the steps of a compiled split, run by a team in one call.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "rows.h"
#include "team.h"

namespace minfer {

class Program {
public:
    explicit Program(std::shared_ptr<Team> team) : team_(std::move(team)) {}

    // Append a step. A step that needs nothing of the one before it, nor that anything of it, may
    // be `joined` to it: then there is no barrier between the two.
    template <class Args>
    void add(std::string label, void (*kernel)(const Args&, const Lane&), Args args,
             bool joined = false) {
        auto owned = std::make_shared<Holder<Args>>(kernel, std::move(args));
        if (joined && !steps_.empty()) steps_.back().barrier = false;
        steps_.push_back({&Holder<Args>::call, owned.get(), true});
        labels_.push_back(std::move(label));
        owned_.push_back(std::move(owned));
    }

    // Memory that lives as long as the program.
    template <class T>
    T* own(T value) {
        auto owned = std::make_shared<T>(std::move(value));
        owned_.push_back(owned);
        return owned.get();
    }
    template <class T>
    T* own() {
        auto owned = std::make_shared<T>();
        owned_.push_back(owned);
        return owned.get();
    }

    // Run all steps; throws std::runtime_error if a kernel found an invariant broken.
    void run();
    // Run all steps once and tell the nanoseconds of each, barrier included.
    std::vector<int64_t> profile();

    // Check the counts of real rows before each run: at most `limits` of each kind.
    void expect_counts(uintptr_t counts, std::vector<int32_t> limits) {
        counts_ = reinterpret_cast<const int32_t*>(counts);
        count_limits_ = std::move(limits);
    }

    Fault* fault() { return &fault_; }
    const std::vector<std::string>& labels() const { return labels_; }

private:
    struct Step {
        void (*call)(const void* holder, const Lane& lane);
        const void* holder;
        bool barrier;  // after the step
    };

    template <class Args>
    struct Holder {
        Holder(void (*k)(const Args&, const Lane&), Args a) : kernel(k), args(std::move(a)) {}
        static void call(const void* holder, const Lane& lane) {
            const auto* self = static_cast<const Holder*>(holder);
            self->kernel(self->args, lane);
        }
        void (*kernel)(const Args&, const Lane&);
        Args args;
    };

    void check_counts();

    std::shared_ptr<Team> team_;
    std::vector<Step> steps_;
    std::vector<std::string> labels_;
    std::vector<std::shared_ptr<void>> owned_;
    std::vector<int64_t> times_;
    Fault fault_;
    const int32_t* counts_ = nullptr;
    std::vector<int32_t> count_limits_;
};

}  // namespace minfer
