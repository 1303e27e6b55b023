#include "workspace.hpp"

#include <algorithm>
#include <stdexcept>
#include <string>

namespace fw {

void ActivationRows::ensure(int num_tokens, std::size_t width) {
    // A whole block more than needed: tiles read rows beyond the last one.
    const std::size_t tokens = round_up(num_tokens, kBlock) + kBlock, groups = width / kGroup;
    values_.ensure(tokens * width);
    pairs_.ensure(tokens * width * sizeof(std::int16_t));
    scales_.ensure(tokens * groups * sizeof(float));
    sums_.ensure(tokens * groups * 3 * sizeof(std::int32_t));
    view = {values_.as<std::int8_t>(), pairs_.as<std::int16_t>(), scales_.as<float>(), sums_.as<std::int32_t>(), width, groups};
}

void Decoder::Workspace::prepare(const Pass& pass, KvCache& cache, const Shape& shape, bool has_branches, int num_threads) {
    layout.plan(pass, cache, shape, num_threads);
    const std::size_t num_nodes = pass.token_ids.size(), rope_rows = num_nodes * shape.ropes.size();
    const std::size_t widest = std::max({shape.qkv_input_width(0), shape.attention_width(), shape.intermediate_width()});
    const auto ensure = [](Buffer& buffer, std::size_t num_floats) { buffer.ensure(num_floats * sizeof(float)); };
    ensure(residual, num_nodes * shape.hidden_width());
    ensure(qkv, num_nodes * shape.qkv_width());
    ensure(attended, num_nodes * shape.attention_width());
    ensure(gated, num_nodes * shape.intermediate_width());
    ensure(branch, has_branches ? num_nodes * shape.hidden_width() : 0);
    ensure(cos, rope_rows * shape.half());
    ensure(sin, rope_rows * shape.half());
    ensure(query_scales, rope_rows);
    ensure(normed, pass.hidden != nullptr ? num_nodes * shape.hidden_width() : 0);
    shared.ensure(static_cast<int>(num_nodes), widest);
    plan_head(pass, shape);
    threads.resize(num_threads);
    for (ThreadMemory& memory : threads) {
        memory.activations.ensure(kBlock, widest);
        ensure(memory.row, widest);
        ensure(memory.attention, attention_scratch(shape.dim(), layout.most_rows));
        ensure(memory.strip, head_rows.size() * kStripTiles * kLanes);
        memory.quantised_for = -1;
        memory.best.assign(fused.size(), no_best());
        memory.last_strip = -1;
        if (!truncated.empty() || !pass.top_nodes.empty()) memory.rows.reserve(static_cast<std::size_t>(shape.vocab));
    }
}

void Decoder::Workspace::plan_head(const Pass& pass, const Shape& shape) {
    head_rows.clear();
    fused.clear();
    truncated.clear();
    row_of_node.assign(pass.token_ids.size(), -1);
    const auto row_of = [&](int node) {
        if (row_of_node[node] < 0) {
            row_of_node[node] = static_cast<int>(head_rows.size());
            head_rows.push_back({node, nullptr});
        }
        return row_of_node[node];
    };
    for (std::size_t i = 0; i < pass.logit_nodes.size(); ++i) {
        HeadRow& row = head_rows[row_of(pass.logit_nodes[i])];
        if (row.logits != nullptr) throw std::invalid_argument("node " + std::to_string(row.node) + " asks for its logits twice");
        row.logits = pass.logits + i * static_cast<std::size_t>(shape.vocab);
    }
    std::vector<int> without_memory;
    const auto keep_row = [&](int node) {
        const int row = row_of(node);
        if (head_rows[row].logits == nullptr) without_memory.push_back(row);
    };
    for (const std::int32_t node : pass.top_nodes) keep_row(node);
    for (std::size_t i = 0; i < pass.draws.size(); ++i)
        if (pass.draws[i].truncates()) {
            keep_row(pass.draws[i].node);
            truncated.push_back(static_cast<int>(i));
        } else {
            fused.push_back({static_cast<int>(i), row_of(pass.draws[i].node)});
        }
    logits.ensure(without_memory.size() * static_cast<std::size_t>(shape.vocab) * sizeof(float));
    for (std::size_t i = 0; i < without_memory.size(); ++i)
        head_rows[without_memory[i]].logits = logits.as<float>() + i * static_cast<std::size_t>(shape.vocab);
}

}  // namespace fw
