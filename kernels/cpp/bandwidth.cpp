// How fast memory can be read: the floor under a pass.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>

#include "cpu.hpp"
#include "memory.hpp"
#include "thread_pool.hpp"

namespace fw {

double read_bandwidth(std::size_t num_bytes, int num_threads, int repeats) {
    // Whole steps for every thread; on huge pages, as the weights lie.
    const std::size_t threads = static_cast<std::size_t>(std::max(num_threads, 1));
    const std::size_t part = std::max(num_bytes / threads / kStreamBytes, std::size_t{1}) * kStreamBytes;
    const Buffer buffer(part * threads, Pages::kHuge);
    std::memset(buffer.data(), 1, buffer.size());
    const Kernels& kernels = kernels_named("auto");
    ThreadPool pool(num_threads);
    const Stage stages[] = {{static_cast<int>(threads)}};
    std::atomic<std::uint64_t> sink{0};  // so that reading is not left out
    double best_s = 1e30;
    for (int i = 0; i < repeats + 1; ++i) {  // the first one warms up
        const auto start = std::chrono::steady_clock::now();
        pool.run(stages, [&](int, int begin, int end, int) {
            for (int i = begin; i < end; ++i) sink.fetch_xor(kernels.read_stream(buffer.data() + part * static_cast<std::size_t>(i), part));
        });
        const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
        if (i > 0) best_s = std::min(best_s, seconds);
    }
    return static_cast<double>(buffer.size()) / best_s * 1e-9;
}

}  // namespace fw
