// Reading memory as fast as it comes. Included inside the namespace of one instruction set.

// A digest of `num_bytes` bytes, a multiple of kStreamBytes. The processor fetches ahead of each of several runs by itself: eight side
// by side keep twice as many cache lines under way as one, and their sums do not wait for one another.
std::uint64_t read_stream(const std::uint8_t* bytes, std::size_t num_bytes) {
    constexpr int kRuns = static_cast<int>(kStreamBytes / (kLanes * sizeof(std::int32_t)));
    const std::size_t run_bytes = num_bytes / kRuns;
    Ints folded[kRuns];
    FW_UNROLL
    for (int run = 0; run < kRuns; ++run) folded[run] = splat(0);
    for (std::size_t at = 0; at < run_bytes; at += kLanes * sizeof(std::int32_t))
        FW_UNROLL
        for (int run = 0; run < kRuns; ++run)
            folded[run] = folded[run] ^ load(reinterpret_cast<const std::int32_t*>(bytes + run * run_bytes + at));
    Ints all = splat(0);
    for (int run = 0; run < kRuns; ++run) all = all ^ folded[run];
    alignas(64) std::int32_t words[kLanes];
    store(words, all);
    std::uint64_t digest = 0;
    for (const std::int32_t word : words) digest = digest * 31 + static_cast<std::uint32_t>(word);
    return digest;
}
