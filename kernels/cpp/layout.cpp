#include "layout.hpp"

#include <algorithm>
#include <stdexcept>
#include <string>

namespace fw {
namespace {

void require(bool holds, const std::string& message) {
    if (!holds) throw std::invalid_argument(message);
}

void check_pass(const Pass& pass, const Shape& shape) {
    const std::size_t num_nodes = pass.token_ids.size(), num_requests = pass.slots.size();
    require(pass.parents.size() == num_nodes && pass.positions.size() == num_nodes, "token ids, parents and positions differ in length");
    require(pass.starts.size() == num_requests + 1 && pass.kv_lens.size() == num_requests, "starts, kv_lens and slots do not go together");
    require(pass.starts[0] == 0 && pass.starts[num_requests] == static_cast<std::int32_t>(num_nodes), "starts do not cover the nodes");
    require(num_nodes > 0, "a pass needs at least one node");
    for (std::size_t i = 0; i < num_requests; ++i)
        require(pass.starts[i] < pass.starts[i + 1], "starts must ascend, a node a request at least; request " + std::to_string(i) + " goes from " +
                                                         std::to_string(pass.starts[i]) + " to " + std::to_string(pass.starts[i + 1]));
    std::vector<std::int32_t> slots(pass.slots.begin(), pass.slots.end());
    std::sort(slots.begin(), slots.end());
    const auto twice = std::adjacent_find(slots.begin(), slots.end());
    require(twice == slots.end(), "slot " + (twice == slots.end() ? std::string() : std::to_string(*twice)) + " has two requests in one pass");
    for (const std::int32_t id : pass.token_ids)
        require((pass.inputs != nullptr && !shape.joins_embedding) || (id >= 0 && id < shape.num_embedded()),
                "token id " + std::to_string(id) + " is outside the vocabulary of " + std::to_string(shape.num_embedded()));
    const auto check_nodes = [&](std::span<const std::int32_t> nodes) {
        for (const std::int32_t node : nodes)
            require(node >= 0 && node < static_cast<std::int32_t>(num_nodes), "node " + std::to_string(node) + " is not in the pass");
    };
    check_nodes(pass.logit_nodes);
    check_nodes(pass.top_nodes);
    for (const DrawSpec& draw : pass.draws) check_nodes(std::span(&draw.node, 1));
    for (const std::int32_t tap : pass.taps)
        require(tap >= 0 && tap <= shape.num_layers, "tap " + std::to_string(tap) + " is outside 0 to " + std::to_string(shape.num_layers));
}

}  // namespace

void PassLayout::plan(const Pass& pass, KvCache& cache, const Shape& shape, int num_threads) {
    check_pass(pass, shape);
    nodes.resize(pass.token_ids.size());
    tails.clear();
    most_rows = 0;
    for (std::size_t request = 0; request < pass.slots.size(); ++request) {
        const int num_nodes = pass.starts[request + 1] - pass.starts[request];
        const KvRegion& region = cache.region(pass.slots[request]);
        const std::size_t rows = static_cast<std::size_t>(pass.kv_lens[request]) + num_nodes;
        require(pass.kv_lens[request] >= 0 && static_cast<std::size_t>(pass.kv_lens[request]) == region.length,
                "kv_len is " + std::to_string(pass.kv_lens[request]) + " but slot " + std::to_string(pass.slots[request]) + " holds " +
                    std::to_string(region.length) + " committed rows");
        require(rows <= region.capacity(), "the region of slot " + std::to_string(pass.slots[request]) + " has " +
                                               std::to_string(region.capacity()) + " rows; reserve " + std::to_string(rows));
        most_rows = std::max(most_rows, static_cast<int>(rows));
        plan_nodes(pass, static_cast<int>(request));
    }
    plan_tasks(pass, shape, num_threads);
}

void PassLayout::plan_nodes(const Pass& pass, int request) {
    const int first = pass.starts[request], end = pass.starts[request + 1], kv_len = pass.kv_lens[request];
    int chain = 0;  // leading nodes that follow one another
    for (int node = first; node < end; ++node) {
        const int local = node - first, parent = pass.parents[node] < 0 ? -1 : pass.parents[node] - first;
        require(local == 0 ? parent == -1 : parent >= 0 && parent < local, "the parent of node " + std::to_string(node) + " is not an earlier node of its request");
        const int depth = local == 0 ? 0 : pass.positions[first + parent] + 1 - kv_len;
        require(pass.positions[node] == kv_len + depth, "the position of node " + std::to_string(node) + " is not kv_len + depth");
        NodeKeys& keys = nodes[node];
        keys.length = kv_len + depth + 1;
        keys.tail_begin = static_cast<int>(tails.size());
        if (chain == local && parent == local - 1) {
            chain += 1;
            keys.chain = keys.length;
            continue;
        }
        path_.clear();
        int ancestor = local;
        for (; ancestor >= chain; ancestor = pass.parents[first + ancestor] - first) path_.push_back(kv_len + ancestor);
        keys.chain = kv_len + ancestor + 1;
        tails.insert(tails.end(), path_.rbegin(), path_.rend());
    }
}

void PassLayout::plan_tasks(const Pass& pass, const Shape& shape, int num_threads) {
    const int group = shape.num_heads / shape.num_kv_heads;
    tasks.clear();
    first_tasks.assign(static_cast<std::size_t>(num_threads) + 1, 0);
    std::int64_t total = 0;
    for (const NodeKeys& keys : nodes) total += static_cast<std::int64_t>(keys.length) * shape.num_heads;
    std::int64_t done = 0;
    int owner = 0;
    for (std::size_t request = 0; request < pass.slots.size(); ++request)
        for (int kv_head = 0; kv_head < shape.num_kv_heads; ++kv_head) {
            const int num_units = (pass.starts[request + 1] - pass.starts[request]) * group;
            bool goes_on = false;
            for (int unit = 0; unit < num_units; ++unit) {
                const int length = nodes[pass.starts[request] + unit / group].length;
                // The thread in whose share of the work the middle of this unit lies.
                const int thread = static_cast<int>((done + length / 2) * num_threads / total);
                done += length;
                for (; owner < thread; goes_on = false) first_tasks[static_cast<std::size_t>(++owner)] = static_cast<int>(tasks.size());
                if (goes_on && tasks.back().num_units < kMaxQueries)
                    tasks.back().num_units += 1;
                else
                    tasks.push_back({static_cast<int>(request), kv_head, unit, 1});
                goes_on = true;
            }
        }
    while (owner < num_threads) first_tasks[static_cast<std::size_t>(++owner)] = static_cast<int>(tasks.size());
}

}  // namespace fw
