// The stages of a pass up to the last layer. A barrier stands wherever a stage reads what other threads wrote.
#include <cmath>
#include <cstring>

#include "workspace.hpp"

namespace fw {
namespace {

// Few rows are quantised by every thread for itself: cheaper than fetching what the others made and waiting for it. Two threads do
// so up to 16 rows (measured); the more threads, the smaller a thread's part would be.
bool stay_private(int num_rows, int num_threads) { return num_rows <= 4 || (num_rows <= kBlock && num_rows * num_threads <= 32); }

inline float from_bfloat16(std::uint16_t half) {
    const std::uint32_t bits = static_cast<std::uint32_t>(half) << 16;
    float value;
    std::memcpy(&value, &bits, sizeof value);
    return value;
}

}  // namespace

void PassThread::run() {
    embed();
    pool_.barrier();
    for (int layer = 0; layer < shape_.num_layers; ++layer) {
        tap(layer);
        attention_sublayer(layer);
        mlp_sublayer(layer);
    }
    tap(shape_.num_layers);
    if (pass_.hidden != nullptr) write_hidden();
    if (!work_.head_rows.empty()) head();
}

void PassThread::embed() {
    const std::size_t hidden = static_cast<std::size_t>(shape_.hidden), half = static_cast<std::size_t>(shape_.head_dim) / 2;
    const Share nodes = share(num_nodes_);
    for (int node = nodes.begin; node < nodes.end; ++node) {
        float* row = residual(node);
        if (pass_.inputs != nullptr) {
            std::memcpy(row, pass_.inputs + node * hidden, hidden * sizeof(float));
            std::memset(row + hidden, 0, (shape_.hidden_width() - hidden) * sizeof(float));
            if (shape_.norms_residual)
                kernels_.rms_norm(row, weights_.layers[0].hidden_norm.data(), shape_.norm_eps, hidden, shape_.hidden_width(), row);
        } else {
            load_embedding(node, row);
        }
        for (std::size_t i = 0; i < half; ++i) {
            const float angle = static_cast<float>(pass_.positions[node]) * shape_.inverse_frequencies[i];
            work_.cos.as<float>()[node * half + i] = std::cos(angle);
            work_.sin.as<float>()[node * half + i] = std::sin(angle);
        }
    }
}

void PassThread::load_embedding(int node, float* row) const {
    const std::size_t hidden = static_cast<std::size_t>(shape_.hidden);
    const std::uint16_t* source = weights_.embedding.data() + static_cast<std::size_t>(pass_.token_ids[node]) * hidden;
    for (std::size_t i = 0; i < hidden; ++i) row[i] = from_bfloat16(source[i]);
    std::memset(row + hidden, 0, (shape_.hidden_width() - hidden) * sizeof(float));
}

void PassThread::tap(int layer) {
    const std::size_t hidden = static_cast<std::size_t>(shape_.hidden);
    for (std::size_t i = 0; i < pass_.taps.size(); ++i) {
        if (pass_.taps[i] != layer) continue;
        const Share nodes = share(num_nodes_);
        for (int node = nodes.begin; node < nodes.end; ++node)
            std::memcpy(pass_.tapped + (node * pass_.taps.size() + i) * hidden, residual(node), hidden * sizeof(float));
    }
}

template <typename Source>
Activations PassThread::quantise_rows(int num_rows, std::size_t width, std::span<const float> norm, const Source& source) {
    const bool is_private = stay_private(num_rows, num_threads_);
    Activations rows = is_private ? mine_.activations.view : work_.shared.view;
    rows.width = width;
    rows.num_groups = width / kGroup;
    const Share part = is_private ? Share(num_rows, 0, 1) : share(num_rows);
    for (int i = part.begin; i < part.end; ++i) {
        const float* row = source(i);
        if (!norm.empty()) {
            kernels_.rms_norm(row, norm.data(), shape_.norm_eps, static_cast<std::size_t>(shape_.hidden), width, mine_.row.as<float>());
            row = mine_.row.as<float>();
        }
        kernels_.quantise(row, rows, i);
    }
    if (!is_private) pool_.barrier();
    return rows;
}

Activations PassThread::quantise_head_rows() {
    return quantise_rows(static_cast<int>(work_.head_rows.size()), shape_.hidden_width(), weights_.final_norm,
                         [&](int i) { return residual(work_.head_rows[i].node); });
}

Activations PassThread::quantise_attention_rows(int layer) {
    const Layer& w = weights_.layers[layer];
    const std::size_t hidden = static_cast<std::size_t>(shape_.hidden), padded = shape_.hidden_width();
    if (shape_.qkv_input_width(layer) == padded) return quantise_rows(num_nodes_, padded, w.attn_norm, [&](int i) { return residual(i); });
    return quantise_rows(num_nodes_, 2 * padded, {}, [&](int i) -> const float* {
        float *embedded = mine_.row.as<float>(), *state = embedded + padded;
        load_embedding(i, embedded);
        kernels_.rms_norm(embedded, w.attn_norm.data(), shape_.norm_eps, hidden, padded, embedded);
        if (shape_.norms_residual)
            std::memcpy(state, residual(i), padded * sizeof(float));
        else
            kernels_.rms_norm(residual(i), w.hidden_norm.data(), shape_.norm_eps, hidden, padded, state);
        return embedded;
    });
}

void PassThread::multiply(const Matrix& m, const Activations& x, int num_rows, float* rows, std::size_t stride, Into into,
                          const Matrix& next) {
    const Share tiles = tile_share(m);
    const std::uint8_t* then = next.num_tiles > 0 ? next.tiles + tile_share(next).begin * next.tile_bytes() : nullptr;
    if (tiles.begin < tiles.end) kernels_.matmul(m, x, num_rows, tiles.begin, tiles.end, {rows, stride, into, 0}, then);
}

void PassThread::attention_sublayer(int layer) {
    const Layer& w = weights_.layers[layer];
    const Activations normed = quantise_attention_rows(layer);
    multiply(w.qkv, normed, num_nodes_, work_.qkv.as<float>(), shape_.qkv_width(), Into::kSet, w.o);
    pool_.barrier();
    place_keys(layer);
    pool_.barrier();
    attend(layer);
    pool_.barrier();
    const std::size_t width = shape_.attention_width();
    const Activations attended =
        quantise_rows(num_nodes_, width, {}, [&](int i) { return work_.attended.as<float>() + i * width; });
    multiply(w.o, attended, num_nodes_, work_.residual.as<float>(), shape_.hidden_width(), Into::kAdd, w.gate_up);
    pool_.barrier();
}

void PassThread::mlp_sublayer(int layer) {
    const Layer& w = weights_.layers[layer];
    const std::size_t width = shape_.intermediate_width();
    const Activations normed =
        quantise_rows(num_nodes_, shape_.hidden_width(), w.mlp_norm, [&](int i) { return residual(i); });
    multiply(w.gate_up, normed, num_nodes_, work_.gated.as<float>(), width, Into::kSwiglu, w.down);
    pool_.barrier();
    const Activations gated = quantise_rows(num_nodes_, width, {}, [&](int i) { return work_.gated.as<float>() + i * width; });
    multiply(w.down, gated, num_nodes_, work_.residual.as<float>(), shape_.hidden_width(), Into::kAdd,
             layer + 1 < shape_.num_layers ? weights_.layers[layer + 1].qkv : weights_.head);
    pool_.barrier();
}

void PassThread::place_keys(int layer) {
    const Layer& w = weights_.layers[layer];
    const std::size_t dim = shape_.dim(), half = static_cast<std::size_t>(shape_.head_dim) / 2;
    const int turned = shape_.num_heads + shape_.num_kv_heads;  // heads that rotate
    const float query_scale = 1.0f / std::sqrt(static_cast<float>(shape_.head_dim));
    for (std::size_t request = 0; request < pass_.slots.size(); ++request) {
        KvRegion& region = cache_.region(pass_.slots[request]);
        const int first = pass_.starts[request], num_nodes = pass_.starts[request + 1] - first;
        const Share part = share(num_nodes * turned);
        for (int item = part.begin; item < part.end; ++item) {
            const int local = item / turned, head = item % turned, node = first + local;
            float* row = work_.qkv.as<float>() + node * shape_.qkv_width();
            float* vector = row + head * dim;
            const bool is_query = head < shape_.num_heads;
            if (const std::span<const float> norm = is_query ? w.q_norm : w.k_norm; !norm.empty())
                kernels_.rms_norm(vector, norm.data(), shape_.norm_eps, static_cast<std::size_t>(shape_.head_dim), dim, vector);
            kernels_.rotate(vector, work_.cos.as<float>() + node * half, work_.sin.as<float>() + node * half, half, dim,
                            is_query ? query_scale : 1.0f);
            if (!is_query) {
                const float* value = vector + static_cast<std::size_t>(shape_.num_kv_heads) * dim;
                region.place(layer, head - shape_.num_heads, region.length + local, vector, value);
            }
        }
    }
}

void PassThread::attend(int layer) {
    for (const AttentionTask& task : work_.layout.tasks[thread_]) run_task(layer, task);
}

void PassThread::run_task(int layer, const AttentionTask& task) {
    const int group = shape_.num_heads / shape_.num_kv_heads, first = pass_.starts[task.request];
    const std::size_t dim = shape_.dim();
    const KvRegion& region = cache_.region(pass_.slots[task.request]);
    AttentionBlock block{};
    block.keys = region.keys(layer, task.kv_head);
    block.values = region.values(layer, task.kv_head);
    block.format = region.format();
    block.dim = dim;
    block.num_queries = task.num_units;
    block.num_rows = static_cast<int>(region.length) + pass_.starts[task.request + 1] - first;
    block.scratch = mine_.attention.as<float>();
    for (int q = 0; q < task.num_units; ++q) {
        const int unit = task.first_unit + q, node = first + unit / group, head = task.kv_head * group + unit % group;
        const NodeKeys& keys = work_.layout.nodes[node];
        block.queries[q] = work_.qkv.as<float>() + node * shape_.qkv_width() + head * dim;
        block.outputs[q] = work_.attended.as<float>() + node * shape_.attention_width() + head * dim;
        block.lengths[q] = keys.length;
        block.chains[q] = keys.chain;
        block.tails[q] = work_.layout.tails.data() + keys.tail_begin;
    }
    kernels_.attend(block);
}

}  // namespace fw
