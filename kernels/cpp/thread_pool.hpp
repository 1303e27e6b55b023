// Threads that do one job after the other.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

#include "forks.hpp"

namespace fw {

// The part [begin, end) of `total` that thread `index` of `count` does.
struct Share {
    int begin, end;
    Share(int total, int index, int count)
        : begin(static_cast<int>(static_cast<std::int64_t>(total) * index / count)),
          end(static_cast<int>(static_cast<std::int64_t>(total) * (index + 1) / count)) {}
};

// A part of a job: items in any order on any threads, once all items of the stage before are done.
struct Stage {
    int num_items;                 // at most kMostItems
    int grain = 1;                 // items that a thread takes at a time; a rest of less than two grains goes in one
    const int* begins = nullptr;   // [threads + 1]: the items of each thread's share; null: equal shares
};

inline constexpr int kMostItems = (1 << 18) - 1;

// Runs jobs on its threads; the caller is thread 0. Each thread takes the items of its own share, some at a time, then those that are
// left of others' shares. A stage ends when its items are done, not when its threads have come: a thread that the system took off its
// core is waited for only if it holds items. Waiting threads spin for a moment, then sleep. Threads begin with the first job, in a child
// of fork() once more, and no more of them than there are cores, whatever was asked for: what is computed does not depend on it.
class ThreadPool {
public:
    using Work = std::function<void(int stage, int begin, int end, int thread)>;

    // `num_cores` 0: those this process may use.
    explicit ThreadPool(int num_threads, int num_cores = 0);
    ~ThreadPool();
    ThreadPool(const ThreadPool&) = delete;
    ThreadPool& operator=(const ThreadPool&) = delete;

    int num_threads() const { return num_threads_; }
    // So many from now on, within what the constructor allows. Not while somebody runs passes on it: they share work by the number.
    void resize(int num_threads);
    // One job at a time: a second caller waits. `work` must not throw.
    void run(std::span<const Stage> stages, const Work& work);

private:
    // What is left of one thread's share: 28 bits of the stage's number, so that a thread that comes late cannot take items of another
    // stage, then the next item and the end.
    struct alignas(64) Claim {
        std::atomic<std::uint64_t> word{0};
    };
    void start_workers();
    void stop_workers();
    void forget_workers();
    void serve(int thread);
    bool take(Claim& claim, int& begin, int& end);
    void begin_next_stage();
    void publish(const Stage& stage);
    void wait_for_change(std::uint32_t seen, int spins);
    void work_on(int thread);

    const int most_threads_;
    int num_threads_;
    const bool is_crowded_;  // more threads than cores: waiting threads had better sleep
    std::mutex job_mutex_;
    const std::unique_ptr<Claim[]> claims_;  // one a thread
    // Written by the thread that ends a stage, read by those that hold items of the next.
    std::span<const Stage> stages_;
    const Work* work_ = nullptr;
    int stage_ = 0;
    alignas(64) std::atomic<std::uint32_t> sequence_{0};  // stages and jobs begun or ended; what waiting threads look at
    std::atomic<int> grain_{1};
    std::atomic<bool> is_done_{false}, stopping_{false};
    alignas(64) std::atomic<int> num_left_{0};  // items of the stage that are not done
    std::vector<std::thread> workers_;
    const InEveryChild in_every_child_{[this] { forget_workers(); }};  // last, so that it goes first
};

}  // namespace fw
