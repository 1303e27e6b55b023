// What a pass's nodes see of their request's keys, and how attention is shared among threads.
#pragma once

#include <cstdint>
#include <vector>

#include "decoder.hpp"

namespace fw {

// The keys of one node: rows [0, chain) at the row of their position, then the rows of `tail`; chain + tail = position + 1.
struct NodeKeys {
    int chain, length;
    int tail_begin;  // in PassLayout::tails
};

// Query heads [first, first + count) of one request and key-value head; unit = node of the request * group + head of the group.
struct AttentionTask {
    int request, kv_head, first_unit, num_units;
};

struct PassLayout {
    std::vector<NodeKeys> nodes;
    std::vector<std::int32_t> tails;
    std::vector<AttentionTask> tasks;  // in the order of the threads they are meant for
    std::vector<int> first_tasks;      // [threads + 1]: of each thread
    int most_rows = 0;

    // Throws std::invalid_argument where parents, positions or the cache do not go together.
    void plan(const Pass& pass, KvCache& cache, const Shape& shape, int num_threads);

private:
    void plan_nodes(const Pass& pass, int request);
    void plan_tasks(const Pass& pass, const Shape& shape, int num_threads);
    std::vector<std::int32_t> path_;
};

}  // namespace fw
