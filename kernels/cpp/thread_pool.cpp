#include "thread_pool.hpp"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace fw {
namespace {

inline void relax() {
#if defined(__x86_64__)
    _mm_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

// Spins until `done`; after a while lets others have the core, since there may be more threads than cores.
template <typename Done>
void spin_until(const Done& done) {
    for (int i = 0; !done(); ++i) {
        relax();
        if (i > 1000) std::this_thread::yield();
    }
}

// About 2 ms with a pause of some 40 ns: as long as what stands between two passes. Waking a sleeper takes longer than a draft.
constexpr int kSpinsBeforeSleep = 50000;

}  // namespace

ThreadPool::ThreadPool(int num_threads) : num_threads_(num_threads < 1 ? 1 : num_threads) {}

void ThreadPool::start_workers() {
    const std::uint32_t seen = generation_.load();
    for (int thread = 1; thread < num_threads_; ++thread) workers_.emplace_back([this, thread, seen] { work(thread, seen); });
}

// In a child of fork(): the threads do not exist there, so they can be neither joined nor let go.
void ThreadPool::forget_workers() { new std::vector<std::thread>(std::move(workers_)); }

ThreadPool::~ThreadPool() {
    stopping_.store(true);
    generation_.fetch_add(1);
    generation_.notify_all();
    for (std::thread& worker : workers_) worker.join();
}

void ThreadPool::run(const std::function<void(int)>& region) {
    const std::lock_guard lock(region_mutex_);
    if (workers_.empty()) start_workers();
    region_ = &region;
    running_.store(num_threads_ - 1, std::memory_order_relaxed);
    generation_.fetch_add(1, std::memory_order_release);
    generation_.notify_all();
    region(0);
    spin_until([this] { return running_.load(std::memory_order_acquire) == 0; });
}

void ThreadPool::barrier() {
    const std::uint32_t round = round_.load(std::memory_order_relaxed);
    if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == num_threads_) {
        arrived_.store(0, std::memory_order_relaxed);
        round_.store(round + 1, std::memory_order_release);
        return;
    }
    spin_until([this, round] { return round_.load(std::memory_order_acquire) != round; });
}

void ThreadPool::work(int thread, std::uint32_t seen) {
    while (true) {
        for (int i = 0; i < kSpinsBeforeSleep && generation_.load(std::memory_order_acquire) == seen; ++i) relax();
        generation_.wait(seen, std::memory_order_acquire);
        // Exactly one generation has begun: the next cannot before this thread is done with it.
        seen += 1;
        if (stopping_.load(std::memory_order_acquire)) return;
        (*region_)(thread);
        running_.fetch_sub(1, std::memory_order_acq_rel);
    }
}

}  // namespace fw
