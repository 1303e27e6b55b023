// The end of a pass: final norm, head, draws.
#include <cstring>

#include "workspace.hpp"

namespace fw {

void PassThread::write_hidden(int, int begin, int end) {
    const std::size_t hidden = static_cast<std::size_t>(shape_.hidden);
    for (int node = begin; node < end; ++node) {
        if (weights_.final_norm.empty()) {
            std::memcpy(pass_.hidden + node * hidden, residual(node), hidden * sizeof(float));
            continue;
        }
        normalise(residual(node), weights_.final_norm, hidden, shape_.hidden_width(), mine_.row.as<float>());
        std::memcpy(pass_.hidden + node * hidden, mine_.row.as<float>(), hidden * sizeof(float));
    }
}

void PassThread::quantise_head_rows(int, int begin, int end) {
    for (int i = begin; i < end; ++i) quantise_row(residual(work_.head_rows[static_cast<std::size_t>(i)].node), weights_.final_norm, i);
}

void PassThread::look_at_logits(int, int begin, int end) {
    for (int strip = begin; strip < end; ++strip) look_at_strip(strip);
}

// A few tiles at a time for all rows: logits are looked at while they are still in the nearest cache.
void PassThread::look_at_strip(int index) {
    const Matrix& m = weights_.head;
    const int num_rows = static_cast<int>(work_.head_rows.size()), tile = index * kStripTiles;
    const int end = tile + kStripTiles < m.num_tiles ? tile + kStripTiles : m.num_tiles;
    const std::size_t stride = kStripTiles * kLanes;
    float* strip = mine_.strip.as<float>();
    kernels_.matmul(m, rows_, num_rows, tile, end, {strip, stride, Into::kSet, tile}, end < m.num_tiles ? m.tiles + end * m.tile_bytes() : nullptr);
    if (shape_.logit_cap > 0.0f)
        for (int row = 0; row < num_rows; ++row) kernels_.soft_cap(strip + row * stride, static_cast<std::size_t>(end - tile) * kLanes, shape_.logit_cap);
    const int first = tile * kLanes, last = end * kLanes < shape_.vocab ? end * kLanes : shape_.vocab;
    for (int row = 0; row < num_rows; ++row)
        if (float* logits = work_.head_rows[row].logits)
            std::memcpy(logits + first, strip + row * stride, static_cast<std::size_t>(last - first) * sizeof(float));
    // A thread that has come to the end of its share takes strips of others', which may lie before those that it has seen. Lanes move to
    // strictly larger scores alone, so that of equal ones the first seen stays: such a strip's best is found apart, and the lower id taken.
    const bool goes_back = index < mine_.last_strip;
    if (!goes_back) mine_.last_strip = index;
    for (std::size_t i = 0; i < work_.fused.size(); ++i) {
        const DrawSpec& draw = pass_.draws[work_.fused[i].draw];
        const float* logits = strip + work_.fused[i].row * stride;
        Best apart = no_best();
        Best& best = goes_back ? apart : mine_.best[i];
        if (draw.temperature == 0)
            kernels_.best_greedy(logits, first, last - first, best);
        else
            kernels_.best_perturbed(logits, first, last - first, noise_of(draw, pass_.names), -__builtin_inff(), best);
        if (goes_back) take_better(mine_.best[i], apart);
    }
}

// What needs whole rows, one at a time: fused draws, then truncated ones, then top nodes.
void PassThread::finish_draws(int, int begin, int end) {
    const std::size_t vocab = static_cast<std::size_t>(shape_.vocab), num_fused = work_.fused.size();
    const auto logits_of = [&](int node) { return work_.head_rows[work_.row_of_node[node]].logits; };
    for (std::size_t item = static_cast<std::size_t>(begin); item < static_cast<std::size_t>(end); ++item) {
        if (item < num_fused) {
            pass_.choices[work_.fused[item].draw] = best_of_threads(item);
        } else if (item < pass_.draws.size()) {
            const int index = work_.truncated[item - num_fused];
            const DrawSpec& draw = pass_.draws[index];
            pass_.choices[index] = draw_truncated(kernels_, logits_of(draw.node), vocab, draw, noise_of(draw, pass_.names), mine_.rows);
        } else {
            const std::size_t i = item - pass_.draws.size(), k = static_cast<std::size_t>(pass_.top_k);
            name_likeliest(kernels_, logits_of(pass_.top_nodes[i]), vocab, pass_.top_k, pass_.top_ids + i * k, pass_.top_logprobs + i * k, mine_.rows);
        }
    }
}

// Strips go to any thread, so of equal scores the lowest token is looked for.
std::int32_t PassThread::best_of_threads(std::size_t fused) const {
    Best best = no_best();
    for (const ThreadMemory& memory : work_.threads) take_better(best, memory.best[fused]);
    return token_of(best_lane(best), shape_.vocab);
}

}  // namespace fw
