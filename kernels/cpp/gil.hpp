// Python's lock around long calls, and what happens to them when the interpreter ends.
#pragma once

#include <nanobind/nanobind.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <optional>
#include <thread>

#include "forks.hpp"

namespace fw {

// Calls under way, and whether the interpreter is about to end.
struct LongCalls {
    std::atomic<int> num_running{0};
    std::atomic<bool> is_ending{false};
    std::atomic<std::thread::id> ender{};
};
inline LongCalls& long_calls() {
    static LongCalls calls;
    return calls;
}

// Gives Python's lock away while it lives. The interpreter ends a thread that asks for the lock too late by unwinding its stack, which
// C++ frames do not survive; so a call that begins when the interpreter is about to end never comes back, and the end waits for others.
class WithoutGil {
public:
    WithoutGil() {
        LongCalls& calls = long_calls();
        calls.num_running.fetch_add(1);
        if (calls.is_ending && calls.ender.load() != std::this_thread::get_id()) {
            calls.num_running.fetch_sub(1);
            PyEval_SaveThread();
            while (true) ::pause();
        }
        state_ = PyEval_SaveThread();
        no_fork_.emplace();
    }
    ~WithoutGil() {
        no_fork_.reset();  // before the lock: a thread that forks holds it
        PyEval_RestoreThread(state_);
        long_calls().num_running.fetch_sub(1);
    }
    WithoutGil(const WithoutGil&) = delete;
    WithoutGil& operator=(const WithoutGil&) = delete;

private:
    PyThreadState* state_;
    std::optional<NoFork> no_fork_;
};

// To be called when the interpreter is about to end, while threads may still have its lock.
inline void wait_for_long_calls() {
    LongCalls& calls = long_calls();
    calls.ender = std::this_thread::get_id();
    calls.is_ending = true;
    const nanobind::gil_scoped_release released;
    while (calls.num_running > 0) std::this_thread::sleep_for(std::chrono::microseconds(200));
}

}  // namespace fw
