// What threads do in the stages of a pass up to the last layer.
#include <cmath>
#include <cstring>

#include "workspace.hpp"

namespace fw {
namespace {

inline float from_bfloat16(std::uint16_t half) {
    const std::uint32_t bits = static_cast<std::uint32_t>(half) << 16;
    float value;
    std::memcpy(&value, &bits, sizeof value);
    return value;
}

}  // namespace

void PassThread::run(int stage, int begin, int end) {
    const Step& step = work_.steps[static_cast<std::size_t>(stage)];
    rows_ = step.is_private ? mine_.activations.view : work_.shared.view;
    rows_.width = step.width;
    rows_.num_groups = step.width / kGroup;
    if (step.quantise != nullptr && mine_.quantised_for != stage) {
        (this->*step.quantise)(step.layer, 0, step.num_rows);
        mine_.quantised_for = stage;
    }
    (this->*step.work)(step.layer, begin, end);
}

void PassThread::embed(int, int begin, int end) {
    const std::size_t hidden = static_cast<std::size_t>(shape_.hidden), half = static_cast<std::size_t>(shape_.head_dim) / 2;
    for (int node = begin; node < end; ++node) {
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

void PassThread::tap(int layer, int begin, int end) {
    const std::size_t hidden = static_cast<std::size_t>(shape_.hidden);
    for (std::size_t i = 0; i < pass_.taps.size(); ++i) {
        if (pass_.taps[i] != layer) continue;
        for (int node = begin; node < end; ++node)
            std::memcpy(pass_.tapped + (node * pass_.taps.size() + i) * hidden, residual(node), hidden * sizeof(float));
    }
}

// Row `index` of the next product: `row`, or its norm where `norm` is not empty.
void PassThread::quantise_row(const float* row, std::span<const float> norm, int index) {
    if (!norm.empty()) {
        kernels_.rms_norm(row, norm.data(), shape_.norm_eps, static_cast<std::size_t>(shape_.hidden), rows_.width, mine_.row.as<float>());
        row = mine_.row.as<float>();
    }
    kernels_.quantise(row, rows_, index);
}

void PassThread::quantise_attention_rows(int layer, int begin, int end) {
    const Layer& w = weights_.layers[static_cast<std::size_t>(layer)];
    if (rows_.width == shape_.hidden_width()) {
        for (int i = begin; i < end; ++i) quantise_row(residual(i), w.attn_norm, i);
        return;
    }
    const std::size_t hidden = static_cast<std::size_t>(shape_.hidden), padded = shape_.hidden_width();
    float *embedded = mine_.row.as<float>(), *state = embedded + padded;
    for (int i = begin; i < end; ++i) {
        load_embedding(i, embedded);
        kernels_.rms_norm(embedded, w.attn_norm.data(), shape_.norm_eps, hidden, padded, embedded);
        if (shape_.norms_residual)
            std::memcpy(state, residual(i), padded * sizeof(float));
        else
            kernels_.rms_norm(residual(i), w.hidden_norm.data(), shape_.norm_eps, hidden, padded, state);
        quantise_row(embedded, {}, i);
    }
}

void PassThread::quantise_attended_rows(int, int begin, int end) {
    for (int i = begin; i < end; ++i) quantise_row(work_.attended.as<float>() + i * rows_.width, {}, i);
}

void PassThread::quantise_mlp_rows(int layer, int begin, int end) {
    for (int i = begin; i < end; ++i) quantise_row(residual(i), weights_.layers[static_cast<std::size_t>(layer)].mlp_norm, i);
}

void PassThread::quantise_gated_rows(int, int begin, int end) {
    for (int i = begin; i < end; ++i) quantise_row(work_.gated.as<float>() + i * rows_.width, {}, i);
}

// Items [begin, end) of a product, each `unit` tiles. At the end of its share this thread goes on with the `next` matrix.
void PassThread::multiply(const Matrix& m, int begin, int end, int unit, const Output& out, const Matrix& next, int next_unit) {
    const auto share_of = [&](const Matrix& matrix, int tiles) { return Share(matrix.num_tiles / tiles, thread_, num_threads_); };
    const bool is_last = end == share_of(m, unit).end;
    const std::uint8_t* then = m.tiles + static_cast<std::size_t>(end * unit) * m.tile_bytes();
    if (is_last) then = next.num_tiles > 0 ? next.tiles + static_cast<std::size_t>(share_of(next, next_unit).begin * next_unit) * next.tile_bytes() : nullptr;
    kernels_.matmul(m, rows_, num_nodes_, begin * unit, end * unit, out, then);
}

void PassThread::make_heads(int layer, int begin, int end) {
    const Layer& w = weights_.layers[static_cast<std::size_t>(layer)];
    multiply(w.qkv, begin, end, head_tiles(), {work_.qkv.as<float>(), shape_.qkv_width(), Into::kSet, 0}, w.o, 1);
    for (int head = begin; head < end; ++head) place_head(layer, head);
}

void PassThread::add_attended(int layer, int begin, int end) {
    const Layer& w = weights_.layers[static_cast<std::size_t>(layer)];
    multiply(w.o, begin, end, 1, {work_.residual.as<float>(), shape_.hidden_width(), Into::kAdd, 0}, w.gate_up, 2);
}

void PassThread::make_gated(int layer, int begin, int end) {
    const Layer& w = weights_.layers[static_cast<std::size_t>(layer)];
    multiply(w.gate_up, begin, end, 2, {work_.gated.as<float>(), shape_.intermediate_width(), Into::kSwiglu, 0}, w.down, 1);
}

void PassThread::add_gated(int layer, int begin, int end) {
    const std::size_t index = static_cast<std::size_t>(layer);
    const bool is_last = index + 1 == weights_.layers.size();
    multiply(weights_.layers[index].down, begin, end, 1, {work_.residual.as<float>(), shape_.hidden_width(), Into::kAdd, 0},
             is_last ? weights_.head : weights_.layers[index + 1].qkv, is_last ? kStripTiles : head_tiles());
}

// Turns a query or key of every node; puts a key or value into the cache.
void PassThread::place_head(int layer, int head) {
    const Layer& w = weights_.layers[static_cast<std::size_t>(layer)];
    const std::size_t dim = shape_.dim(), half = static_cast<std::size_t>(shape_.head_dim) / 2;
    const int key = head - shape_.num_heads, value = key - shape_.num_kv_heads;  // below 0: it is none
    const std::span<const float> norm = key < 0 ? w.q_norm : w.k_norm;
    const float scale = key < 0 ? 1.0f / std::sqrt(static_cast<float>(shape_.head_dim)) : 1.0f;
    for (std::size_t request = 0; request < pass_.slots.size(); ++request) {
        KvRegion& region = cache_.region(pass_.slots[request]);
        const int first = pass_.starts[request];
        for (int node = first; node < pass_.starts[request + 1]; ++node) {
            float* vector = work_.qkv.as<float>() + node * shape_.qkv_width() + head * dim;
            const std::size_t row = region.length + static_cast<std::size_t>(node - first);
            if (value >= 0) {
                region.place_value(layer, value, row, vector);
                continue;
            }
            if (!norm.empty())
                kernels_.rms_norm(vector, norm.data(), shape_.norm_eps, static_cast<std::size_t>(shape_.head_dim), dim, vector);
            kernels_.rotate(vector, work_.cos.as<float>() + node * half, work_.sin.as<float>() + node * half, half, dim, scale);
            if (key >= 0) region.place_key(layer, key, row, vector);
        }
    }
}

void PassThread::attend(int layer, int begin, int end) {
    for (int task = begin; task < end; ++task) run_task(layer, work_.layout.tasks[static_cast<std::size_t>(task)]);
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
