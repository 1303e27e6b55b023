// The end of a pass: final norm, head, draws.
#include <cstring>

#include "workspace.hpp"

namespace fw {

void PassThread::write_hidden() {
    const std::size_t hidden = static_cast<std::size_t>(shape_.hidden);
    const Share nodes = share(num_nodes_);
    for (int node = nodes.begin; node < nodes.end; ++node) {
        if (weights_.final_norm.empty()) {
            std::memcpy(pass_.hidden + node * hidden, residual(node), hidden * sizeof(float));
            continue;
        }
        kernels_.rms_norm(residual(node), weights_.final_norm.data(), shape_.norm_eps, hidden, shape_.hidden_width(), mine_.row.as<float>());
        std::memcpy(pass_.hidden + node * hidden, mine_.row.as<float>(), hidden * sizeof(float));
    }
}

void PassThread::head() {
    head_strips(quantise_head_rows());
    pool_.barrier();
    finish_rows();
}

// A few tiles at a time for all rows: logits are looked at while they are still in the nearest cache.
void PassThread::head_strips(const Activations& x) {
    const Matrix& m = weights_.head;
    const int num_rows = static_cast<int>(work_.head_rows.size());
    const std::size_t stride = kStripTiles * kLanes;
    const Share tiles = tile_share(m);
    for (int tile = tiles.begin; tile < tiles.end; tile += kStripTiles) {
        const int end = tile + kStripTiles < tiles.end ? tile + kStripTiles : tiles.end;
        float* strip = mine_.strip.as<float>();
        kernels_.matmul(m, x, num_rows, tile, end, {strip, stride, Into::kSet, tile},
                        end < tiles.end ? m.tiles + end * m.tile_bytes() : nullptr);
        const int first = tile * kLanes, last = end * kLanes < shape_.vocab ? end * kLanes : shape_.vocab;
        for (int row = 0; row < num_rows; ++row)
            if (float* logits = work_.head_rows[row].logits)
                std::memcpy(logits + first, strip + row * stride, static_cast<std::size_t>(last - first) * sizeof(float));
        for (std::size_t i = 0; i < work_.fused.size(); ++i) {
            const DrawSpec& draw = pass_.draws[work_.fused[i].draw];
            const float* logits = strip + work_.fused[i].row * stride;
            if (draw.temperature == 0)
                kernels_.best_greedy(logits, first, last - first, mine_.best[i]);
            else
                kernels_.best_perturbed(logits, first, last - first, noise_of(draw, pass_.names), -__builtin_inff(), mine_.best[i]);
        }
    }
}

// What needs whole rows, one row a thread at a time.
void PassThread::finish_rows() {
    const std::size_t vocab = static_cast<std::size_t>(shape_.vocab);
    const auto logits_of = [&](int node) { return work_.head_rows[work_.row_of_node[node]].logits; };
    const Share fused = share(static_cast<int>(work_.fused.size()));
    for (int i = fused.begin; i < fused.end; ++i) {
        Drawn best = best_lane(work_.threads[0].best[i]);
        for (int thread = 1; thread < num_threads_; ++thread) {
            const Drawn other = best_lane(work_.threads[thread].best[i]);
            if (other.score > best.score) best = other;  // its ids are all higher
        }
        pass_.choices[work_.fused[i].draw] = token_of(best, shape_.vocab);
    }
    for (std::size_t i = thread_; i < work_.truncated.size(); i += num_threads_) {
        const DrawSpec& draw = pass_.draws[work_.truncated[i]];
        pass_.choices[work_.truncated[i]] =
            draw_truncated(kernels_, logits_of(draw.node), vocab, draw, noise_of(draw, pass_.names), mine_.rows);
    }
    for (std::size_t i = thread_; i < pass_.top_nodes.size(); i += num_threads_)
        name_likeliest(kernels_, logits_of(pass_.top_nodes[i]), vocab, pass_.top_k, pass_.top_ids + i * pass_.top_k,
                       pass_.top_logprobs + i * pass_.top_k, mine_.rows);
}

}  // namespace fw
