// What threads do in the stages of a pass up to the last layer.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

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
    const std::size_t hidden = static_cast<std::size_t>(shape_.hidden);
    for (int node = begin; node < end; ++node) {
        float* row = residual(node);
        if (pass_.inputs != nullptr) {
            std::memcpy(row, pass_.inputs + node * hidden, hidden * sizeof(float));
            std::memset(row + hidden, 0, (shape_.hidden_width() - hidden) * sizeof(float));
            if (shape_.norms_residual)
                normalise(row, weights_.layers[0].hidden_norm, hidden, shape_.hidden_width(), row);
        } else {
            load_embedding(node, row);
        }
        for (std::size_t rope = 0; rope < shape_.ropes.size(); ++rope) turn_by(shape_.ropes[rope], rope_row(rope, node), node);
    }
}

// What the heads of a node turn by, and what its queries are multiplied by.
void PassThread::turn_by(const Rope& rope, std::size_t row, int node) {
    const std::size_t half = shape_.half();
    const int position = pass_.positions[node];
    for (std::size_t i = 0; i < rope.inverse_frequencies.size(); ++i) {
        const float angle = static_cast<float>(position) * rope.inverse_frequencies[i];
        work_.cos.as<float>()[row * half + i] = std::cos(angle) * rope.magnitude;
        work_.sin.as<float>()[row * half + i] = std::sin(angle) * rope.magnitude;
    }
    const float turns = static_cast<float>(position / rope.temperature_length);
    work_.query_scales.as<float>()[row] = rope.temperature == 0.0f ? 1.0f : 1.0f + rope.temperature * std::log(1.0f + turns);
}

void PassThread::load_embedding(int node, float* row) const {
    const std::size_t hidden = static_cast<std::size_t>(shape_.hidden);
    const std::uint16_t* source = weights_.embedding.data() + static_cast<std::size_t>(pass_.token_ids[node]) * hidden;
    for (std::size_t i = 0; i < hidden; ++i) row[i] = from_bfloat16(source[i]);
    if (shape_.embedding_scale != 1.0f)
        for (std::size_t i = 0; i < hidden; ++i) row[i] *= shape_.embedding_scale;
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

// Of a row of `size` values, padded with zeros; `out` may be the row itself.
void PassThread::normalise(const float* row, const Norm& norm, std::size_t size, std::size_t padded, float* out) const {
    if (shape_.removes_mean)
        kernels_.layer_norm(row, norm.weight.data(), norm.bias.empty() ? nullptr : norm.bias.data(), shape_.norm_eps, size, padded, out);
    else
        kernels_.rms_norm(row, norm.weight.data(), shape_.norm_eps, size, padded, out);
}

// Row `index` of the next product: `row`, or its norm where `norm` is not empty.
void PassThread::quantise_row(const float* row, const Norm& norm, int index) {
    if (!norm.empty()) {
        normalise(row, norm, static_cast<std::size_t>(shape_.hidden), rows_.width, mine_.row.as<float>());
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
        normalise(embedded, w.attn_norm, hidden, padded, embedded);
        if (shape_.norms_residual)
            std::memcpy(state, residual(i), padded * sizeof(float));
        else
            normalise(residual(i), w.hidden_norm, hidden, padded, state);
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
    const Matrix& next = shape_.is_parallel ? w.gate_up : w.o;
    multiply(w.qkv, begin, end, head_tiles(), {work_.qkv.as<float>(), shape_.qkv_width(), Into::kSet, 0}, next, shape_.is_parallel ? 2 : 1);
    if (shape_.norms_all_heads) return;
    for (int head = begin; head < end; ++head)
        for (std::size_t request = 0; request < pass_.slots.size(); ++request)
            for (int node = pass_.starts[request]; node < pass_.starts[request + 1]; ++node) place_head(layer, head, request, node);
}

// Where queries and keys are normed as one row each, which all of their heads must be there for.
void PassThread::norm_heads(int layer, int begin, int end) {
    const Layer& w = weights_.layers[static_cast<std::size_t>(layer)];
    const std::size_t dim = shape_.dim();
    std::size_t request = 0;
    for (int node = begin; node < end; ++node) {
        while (node >= pass_.starts[request + 1]) ++request;
        float* row = work_.qkv.as<float>() + node * shape_.qkv_width();
        const auto norm = [&](const Norm& by, int num_heads) {
            const std::size_t heads = static_cast<std::size_t>(num_heads);
            if (!by.empty()) normalise(row, by, heads * static_cast<std::size_t>(shape_.head_dim), heads * dim, row);
            row += heads * dim;
        };
        norm(w.q_norm, shape_.num_heads);
        norm(w.k_norm, shape_.num_kv_heads);
        for (int head = 0; head < shape_.num_heads + 2 * shape_.num_kv_heads; ++head) place_head(layer, head, request, node);
    }
}

void PassThread::add_attended(int layer, int begin, int end) {
    const Layer& w = weights_.layers[static_cast<std::size_t>(layer)];
    multiply(w.o, begin, end, 1, branch_output(w.attn_out_norm), shape_.is_parallel ? w.down : w.gate_up, shape_.is_parallel ? 1 : 2);
}

void PassThread::make_gated(int layer, int begin, int end) {
    const Layer& w = weights_.layers[static_cast<std::size_t>(layer)];
    const Into into = shape_.has_gelu ? Into::kGeglu : Into::kSwiglu;
    multiply(w.gate_up, begin, end, 2, {work_.gated.as<float>(), shape_.intermediate_width(), into, 0}, shape_.is_parallel ? w.o : w.down, 1);
}

void PassThread::add_gated(int layer, int begin, int end) {
    const std::size_t index = static_cast<std::size_t>(layer);
    const bool is_last = index + 1 == weights_.layers.size();
    multiply(weights_.layers[index].down, begin, end, 1, branch_output(weights_.layers[index].mlp_out_norm),
             is_last ? weights_.head : weights_.layers[index + 1].qkv, is_last ? kStripTiles : head_tiles());
}

// What a block adds goes into the stream, or beside it where it is normed first.
Output PassThread::branch_output(const Norm& out_norm) const {
    return {(out_norm.empty() ? work_.residual : work_.branch).as<float>(), shape_.hidden_width(), out_norm.empty() ? Into::kAdd : Into::kSet, 0};
}

void PassThread::add_attention_branch(int layer, int begin, int end) { add_branch(weights_.layers[static_cast<std::size_t>(layer)].attn_out_norm, begin, end); }
void PassThread::add_mlp_branch(int layer, int begin, int end) { add_branch(weights_.layers[static_cast<std::size_t>(layer)].mlp_out_norm, begin, end); }

void PassThread::add_branch(const Norm& out_norm, int begin, int end) {
    const std::size_t width = shape_.hidden_width();
    for (int node = begin; node < end; ++node) {
        float *row = residual(node), *normed = mine_.row.as<float>();
        normalise(work_.branch.as<float>() + node * width, out_norm, static_cast<std::size_t>(shape_.hidden), width, normed);
        for (std::size_t i = 0; i < width; ++i) row[i] += normed[i];
    }
}

// Turns a node's query or key; puts a key or value into the cache.
void PassThread::place_head(int layer, int head, std::size_t request, int node) {
    const Layer& w = weights_.layers[static_cast<std::size_t>(layer)];
    const std::size_t dim = shape_.dim();
    const int key = head - shape_.num_heads, value = key - shape_.num_kv_heads;  // below 0: it is none
    float* vector = work_.qkv.as<float>() + node * shape_.qkv_width() + head * dim;
    KvRegion& region = cache_.region(pass_.slots[request]);
    const std::size_t row = region.length + static_cast<std::size_t>(node - pass_.starts[request]);
    if (value >= 0) {
        region.place_value(layer, value, row, vector);
        return;
    }
    const Norm& norm = key < 0 ? w.q_norm : w.k_norm;
    if (!norm.empty() && !shape_.norms_all_heads) {
        const std::size_t own = norm.weight.size() == dim ? 0 : static_cast<std::size_t>(key < 0 ? head : key) * dim;
        normalise(vector, {norm.weight.subspan(own, dim)}, static_cast<std::size_t>(shape_.head_dim), dim, vector);
    }
    float scale = key < 0 ? attention_scale_ : 1.0f;
    if (w.rope < 0) {
        kernels_.rotate(vector, nullptr, nullptr, 0, dim, scale);
    } else {
        const std::size_t at = rope_row(static_cast<std::size_t>(w.rope), node);
        if (key < 0) scale *= work_.query_scales.as<float>()[at];
        kernels_.rotate(vector, work_.cos.as<float>() + at * shape_.half(), work_.sin.as<float>() + at * shape_.half(),
                        shape_.ropes[static_cast<std::size_t>(w.rope)].inverse_frequencies.size(), dim, scale);
    }
    if (key >= 0) region.place_key(layer, key, row, vector);
}

void PassThread::attend(int layer, int begin, int end) {
    for (int task = begin; task < end; ++task) run_task(layer, work_.layout.tasks[static_cast<std::size_t>(task)]);
}

void PassThread::run_task(int layer, const AttentionTask& task) {
    const int group = shape_.num_heads / shape_.num_kv_heads, start = pass_.starts[task.request];
    const int window = weights_.layers[static_cast<std::size_t>(layer)].window;
    const std::size_t dim = shape_.dim();
    const KvRegion& region = cache_.region(pass_.slots[task.request]);
    AttentionBlock block{};
    block.keys = region.keys(layer, task.kv_head);
    block.values = region.values(layer, task.kv_head);
    block.format = region.format();
    block.dim = dim;
    block.num_queries = task.num_units;
    block.num_rows = static_cast<int>(region.length) + pass_.starts[task.request + 1] - start;
    block.scratch = mine_.attention.as<float>();
    block.score_cap = shape_.score_cap;
    int first = std::numeric_limits<int>::max();
    for (int q = 0; q < task.num_units; ++q) {
        const int unit = task.first_unit + q, node = start + unit / group, head = task.kv_head * group + unit % group;
        const NodeKeys& keys = work_.layout.nodes[node];
        block.queries[q] = work_.qkv.as<float>() + node * shape_.qkv_width() + head * dim;
        block.outputs[q] = work_.attended.as<float>() + node * shape_.attention_width() + head * dim;
        block.lengths[q] = keys.length;
        block.chains[q] = keys.chain;
        block.tails[q] = work_.layout.tails.data() + keys.tail_begin;
        block.begins[q] = window == 0 ? 0 : std::max(keys.length - window, 0);
        first = std::min(first, block.begins[q]);
    }
    block.first_row = first / (2 * kLanes) * (2 * kLanes);
    kernels_.attend(block);
}

}  // namespace fw
