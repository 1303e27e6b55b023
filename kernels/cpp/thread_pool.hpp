// Threads that wait for one parallel region after the other.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <mutex>
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

// Runs a function once on each of its threads; the caller is thread 0. Waiting threads spin for a moment (a decoding loop comes
// back within microseconds), then sleep. Threads begin with the first region, in a child of fork() once more.
class ThreadPool {
public:
    explicit ThreadPool(int num_threads);
    ~ThreadPool();
    ThreadPool(const ThreadPool&) = delete;
    ThreadPool& operator=(const ThreadPool&) = delete;

    int num_threads() const { return num_threads_; }
    // One region at a time: a second caller waits.
    void run(const std::function<void(int thread)>& region);
    // Inside a region: nobody goes on before all have come.
    void barrier();

private:
    void start_workers();
    void forget_workers();
    void work(int thread, std::uint32_t seen);

    const int num_threads_;
    std::mutex region_mutex_;
    const std::function<void(int)>* region_ = nullptr;
    alignas(64) std::atomic<std::uint32_t> generation_{0};
    alignas(64) std::atomic<int> running_{0};
    alignas(64) std::atomic<int> arrived_{0};
    alignas(64) std::atomic<std::uint32_t> round_{0};
    std::atomic<bool> stopping_{false};
    std::vector<std::thread> workers_;
    const InEveryChild in_every_child_{[this] { forget_workers(); }};  // last: nothing is to be forgotten that does not exist
};

}  // namespace fw
