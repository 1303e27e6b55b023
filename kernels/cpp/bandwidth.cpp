// How fast memory can be read: the floor under a pass.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>

#include "cpu.hpp"
#include "memory.hpp"
#include "thread_pool.hpp"

namespace fw {
namespace {

std::uint64_t read_all(const std::uint8_t* bytes, std::size_t begin, std::size_t end) {
    constexpr std::size_t kStep = 256;
    std::uint64_t folded[kStep / 8] = {};
    for (std::size_t i = begin; i + kStep <= end; i += kStep)
        for (std::size_t j = 0; j < kStep / 8; ++j) {
            std::uint64_t word;
            std::memcpy(&word, bytes + i + j * 8, sizeof word);
            folded[j] ^= word;
        }
    std::uint64_t all = 0;
    for (const std::uint64_t word : folded) all ^= word;
    return all;
}

}  // namespace

double read_bandwidth(std::size_t num_bytes, int num_threads, int repeats) {
    const Buffer buffer(num_bytes, Pages::kHuge);
    std::memset(buffer.data(), 1, num_bytes);
    ThreadPool pool(num_threads);
    std::atomic<std::uint64_t> sink{0};  // so that reading is not left out
    double best_s = 1e30;
    for (int i = 0; i < repeats + 1; ++i) {  // the first one warms up
        const auto start = std::chrono::steady_clock::now();
        pool.run([&](int thread) {
            const std::size_t part = num_bytes / static_cast<std::size_t>(num_threads), begin = part * static_cast<std::size_t>(thread);
            sink.fetch_xor(read_all(buffer.data(), begin, begin + part));
        });
        const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
        if (i > 0) best_s = std::min(best_s, seconds);
    }
    return static_cast<double>(num_bytes) / best_s * 1e-9;
}

}  // namespace fw
