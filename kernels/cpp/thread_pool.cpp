#include "thread_pool.hpp"

#include <algorithm>

#include "cpu.hpp"

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

// A pause takes some 20 to 40 ns. Within a job about 50 us: what an uneven end of a stage takes. Between jobs about 2 ms: what stands
// between two passes; waking a sleeper takes longer than a draft.
constexpr int kSpinsInJob = 1500, kSpinsBetweenJobs = 50000;

constexpr int kItemBits = 18;
static_assert(kMostItems == (1 << kItemBits) - 1);

constexpr std::uint64_t pack(std::uint32_t sequence, int next, int end) {
    return static_cast<std::uint64_t>(sequence) << (2 * kItemBits) | static_cast<std::uint64_t>(next) << kItemBits | static_cast<std::uint64_t>(end);
}
constexpr int next_of(std::uint64_t word) { return static_cast<int>(word >> kItemBits & kMostItems); }
constexpr int end_of(std::uint64_t word) { return static_cast<int>(word & kMostItems); }

int running_threads(int num_threads, int num_cores) { return std::clamp(num_threads, 1, num_cores > 0 ? num_cores : allowed_cores()); }

}  // namespace

ThreadPool::ThreadPool(int num_threads, int num_cores)
    : most_threads_(running_threads(num_threads, num_cores)),
      num_threads_(most_threads_),
      is_crowded_(num_threads_ > allowed_cores()),
      claims_(std::make_unique<Claim[]>(static_cast<std::size_t>(num_threads_))) {}

ThreadPool::~ThreadPool() { stop_workers(); }

void ThreadPool::stop_workers() {
    stopping_.store(true);
    sequence_.fetch_add(1);
    sequence_.notify_all();
    for (std::thread& worker : workers_) worker.join();
    workers_.clear();
    stopping_.store(false);
}

void ThreadPool::resize(int num_threads) {
    const std::lock_guard lock(job_mutex_);
    stop_workers();
    num_threads_ = std::clamp(num_threads, 1, most_threads_);
}

void ThreadPool::start_workers() {
    for (int thread = 1; thread < num_threads_; ++thread) workers_.emplace_back([this, thread] { work_on(thread); });
}

// In a child of fork(): the threads do not exist there, so they can be neither joined nor let go.
void ThreadPool::forget_workers() { new std::vector<std::thread>(std::move(workers_)); }

void ThreadPool::run(std::span<const Stage> stages, const Work& work) {
    const std::lock_guard lock(job_mutex_);
    if (workers_.empty()) start_workers();
    stages_ = stages;
    work_ = &work;
    stage_ = -1;
    is_done_.store(false, std::memory_order_relaxed);
    begin_next_stage();
    while (true) {
        const std::uint32_t seen = sequence_.load(std::memory_order_acquire);
        if (is_done_.load(std::memory_order_relaxed)) return;
        serve(0);
        wait_for_change(seen, kSpinsInJob);
    }
}

void ThreadPool::work_on(int thread) {
    while (true) {
        const std::uint32_t seen = sequence_.load(std::memory_order_acquire);
        if (stopping_.load(std::memory_order_relaxed)) return;
        serve(thread);
        wait_for_change(seen, is_done_.load(std::memory_order_relaxed) ? kSpinsBetweenJobs : kSpinsInJob);
    }
}

// Takes items until none are left to take. Nothing of a job is touched without holding items of it: until they are done it goes on.
void ThreadPool::serve(int thread) {
    int begin, end;
    for (int i = 0; i < num_threads_;) {
        if (!take(claims_[static_cast<std::size_t>((thread + i) % num_threads_)], begin, end)) {
            ++i;
            continue;
        }
        (*work_)(stage_, begin, end, thread);
        if (num_left_.fetch_sub(end - begin, std::memory_order_acq_rel) == end - begin) begin_next_stage();
        i = 0;  // its own share first, of the next stage too
    }
}

bool ThreadPool::take(Claim& claim, int& begin, int& end) {
    std::uint64_t word = claim.word.load(std::memory_order_acquire);
    while (next_of(word) < end_of(word)) {
        const int grain = grain_.load(std::memory_order_relaxed);  // of this stage, or the exchange fails
        begin = next_of(word);
        end = end_of(word) - begin < 2 * grain ? end_of(word) : begin + grain;
        const std::uint64_t taken = word + (static_cast<std::uint64_t>(end - begin) << kItemBits);
        if (claim.word.compare_exchange_weak(word, taken, std::memory_order_acq_rel, std::memory_order_acquire)) return true;
    }
    return false;
}

// Called by the one thread that did the last item, while nobody holds any.
void ThreadPool::begin_next_stage() {
    do ++stage_;
    while (stage_ < static_cast<int>(stages_.size()) && stages_[static_cast<std::size_t>(stage_)].num_items == 0);
    const bool is_last = stage_ == static_cast<int>(stages_.size());
    if (is_last)
        is_done_.store(true, std::memory_order_relaxed);
    else
        publish(stages_[static_cast<std::size_t>(stage_)]);
    sequence_.fetch_add(1, std::memory_order_release);
    sequence_.notify_all();
}

void ThreadPool::publish(const Stage& stage) {
    const std::uint32_t sequence = sequence_.load(std::memory_order_relaxed) + 1;
    grain_.store(stage.grain, std::memory_order_relaxed);
    num_left_.store(stage.num_items, std::memory_order_relaxed);
    for (int thread = 0; thread < num_threads_; ++thread) {
        const Share share(stage.num_items, thread, num_threads_);
        const std::uint64_t word = stage.begins ? pack(sequence, stage.begins[thread], stage.begins[thread + 1]) : pack(sequence, share.begin, share.end);
        claims_[static_cast<std::size_t>(thread)].word.store(word, std::memory_order_release);
    }
}

void ThreadPool::wait_for_change(std::uint32_t seen, int spins) {
    for (int i = is_crowded_ ? spins : 0; i < spins; ++i) {
        if (sequence_.load(std::memory_order_acquire) != seen) return;
        relax();
    }
    sequence_.wait(seen, std::memory_order_acquire);
}

}  // namespace fw
