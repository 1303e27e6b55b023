#include "decoder.hpp"

#include <algorithm>
#include <stdexcept>
#include <string>

#include "workspace.hpp"

namespace fw {
namespace {

void check(const Shape& s) {
    if (s.hidden < 1 || s.intermediate < 1 || s.num_layers < 0 || s.num_heads < 1 || s.num_kv_heads < 1 || s.head_dim < 2 || s.vocab < 1)
        throw std::invalid_argument("a size of the model is not positive");
    if (s.num_heads % s.num_kv_heads != 0) throw std::invalid_argument("query heads must be a multiple of key-value heads");
    if (s.head_dim % 2 != 0) throw std::invalid_argument("the head size must be even");
    for (const Rope& rope : s.ropes) {
        if (2 * rope.inverse_frequencies.size() > static_cast<std::size_t>(s.head_dim))
            throw std::invalid_argument("rotary frequencies must be at most half the head size");
        if (rope.temperature_length < 1) throw std::invalid_argument("temperature_length is below 1");
    }
    if (s.removes_mean && s.norms_all_heads && s.head_dim % kLanes != 0)
        throw std::invalid_argument("a norm that removes the mean of all heads needs a head size that is a multiple of 16");
}

void check(const Matrix& m, std::size_t width, std::size_t outputs, const char* name) {
    if (m.width != width || m.num_tiles != static_cast<int>(outputs / kLanes))
        throw std::invalid_argument(std::string("the packed matrix ") + name + " has " + std::to_string(m.num_tiles) + " tiles of width " +
                                    std::to_string(m.width) + "; expected " + std::to_string(outputs / kLanes) + " of " + std::to_string(width));
}

void check_size(std::size_t size, std::size_t expected, const char* name) {
    if (size != 0 && size != expected)
        throw std::invalid_argument(std::string(name) + " has " + std::to_string(size) + " values; expected " + std::to_string(expected));
}

void check(const Norm& norm, std::size_t expected, const char* name) {
    check_size(norm.weight.size(), expected, name);
    check_size(norm.bias.size(), expected, name);
}

// Of queries or keys: a weight for each head where it has as many.
void check_head_norm(const Norm& norm, const Shape& s, int num_heads, const char* name) {
    const std::size_t each = static_cast<std::size_t>(num_heads) * s.dim();
    check(norm, norm.weight.size() == each || s.norms_all_heads ? each : s.dim(), name);
}

}  // namespace

std::size_t Shape::half() const {
    std::size_t most = 0;
    for (const Rope& rope : ropes) most = std::max(most, rope.inverse_frequencies.size());
    return most;
}

Decoder::Decoder(Shape shape, Weights weights, std::vector<std::shared_ptr<const WeightBytes>> memory, std::shared_ptr<ThreadPool> pool,
                 const Kernels& kernels)
    : shape_(std::move(shape)),
      weights_(std::move(weights)),
      memory_(std::move(memory)),
      pool_(std::move(pool)),
      kernels_(kernels),
      workspace_(std::make_unique<Workspace>()) {
    check(shape_);
    if (weights_.layers.size() != static_cast<std::size_t>(shape_.num_layers)) throw std::invalid_argument("layers are missing");
    if (shape_.joins_embedding && (weights_.layers.empty() || weights_.layers[0].hidden_norm.empty() || weights_.layers[0].attn_norm.empty()))
        throw std::invalid_argument("a first layer that joins the embedding needs attn_norm and hidden_norm");
    if (shape_.norms_residual && !shape_.joins_embedding) throw std::invalid_argument("norms_residual goes with joins_embedding");
    for (const Layer& layer : weights_.layers) {
        check(layer.qkv, shape_.qkv_input_width(static_cast<int>(&layer - weights_.layers.data())), shape_.qkv_width(), "qkv");
        check(layer.o, shape_.attention_width(), shape_.hidden_width(), "o");
        check(layer.gate_up, shape_.hidden_width(), 2 * shape_.intermediate_width(), "gate_up");
        check(layer.down, shape_.intermediate_width(), shape_.hidden_width(), "down");
        check(layer.attn_norm, shape_.hidden_width(), "attn_norm");
        check(layer.hidden_norm, shape_.hidden_width(), "hidden_norm");
        check(layer.mlp_norm, shape_.hidden_width(), "mlp_norm");
        check(layer.attn_out_norm, shape_.hidden_width(), "attn_out_norm");
        check(layer.mlp_out_norm, shape_.hidden_width(), "mlp_out_norm");
        check_head_norm(layer.q_norm, shape_, shape_.num_heads, "q_norm");
        check_head_norm(layer.k_norm, shape_, shape_.num_kv_heads, "k_norm");
        if (layer.rope < -1 || layer.rope >= static_cast<int>(shape_.ropes.size()) || layer.window < 0)
            throw std::invalid_argument("rope " + std::to_string(layer.rope) + " or window " + std::to_string(layer.window) + " of a layer cannot be");
    }
    check_size(weights_.embedding.size(), static_cast<std::size_t>(shape_.num_embedded()) * static_cast<std::size_t>(shape_.hidden), "embedding");
    check(weights_.final_norm, shape_.hidden_width(), "final_norm");
    if (weights_.head.num_tiles > 0) check(weights_.head, shape_.hidden_width(), round_up(shape_.vocab, kLanes), "head");
}

Decoder::~Decoder() = default;

std::unique_ptr<Decoder> Decoder::first_layers(int num_layers) const {
    if (num_layers < 1 || num_layers > shape_.num_layers)
        throw std::invalid_argument("num_layers is " + std::to_string(num_layers) + "; allowed: 1 to " + std::to_string(shape_.num_layers));
    Shape shape = shape_;
    Weights weights = weights_;
    shape.num_layers = num_layers;
    weights.layers.resize(static_cast<std::size_t>(num_layers));
    return std::make_unique<Decoder>(std::move(shape), std::move(weights), memory_, pool_, kernels_);
}

void Decoder::forward(KvCache& cache, const Pass& pass) {
    const std::lock_guard lock(mutex_);
    const std::lock_guard cache_lock(cache.mutex);
    if (cache.num_layers() < shape_.num_layers || cache.num_heads() != shape_.num_kv_heads || cache.head_dim() != shape_.head_dim)
        throw std::invalid_argument("the cache was made for another model");
    if (shape_.joins_embedding && pass.inputs == nullptr) throw std::invalid_argument("the first layer joins embedding and input; pass `inputs`");
    if ((pass.inputs == nullptr || shape_.joins_embedding) && weights_.embedding.empty())
        throw std::invalid_argument("this decoder has no embedding; pass `inputs`");
    const bool wants_head = !pass.draws.empty() || !pass.logit_nodes.empty() || !pass.top_nodes.empty();
    if (wants_head && weights_.head.num_tiles == 0) throw std::invalid_argument("this decoder has no head, so no logits or draws");
    if ((wants_head || pass.hidden != nullptr) && shape_.has_final_norm && weights_.final_norm.empty()) throw std::invalid_argument("this decoder has no final norm");
    if (!pass.names.empty() && pass.names.size() != static_cast<std::size_t>(shape_.vocab))
        throw std::invalid_argument("the head's rows and their names differ in number");
    if (!pass.top_nodes.empty() && (pass.top_k < 1 || pass.top_k > shape_.vocab))
        throw std::invalid_argument("top_k is " + std::to_string(pass.top_k) + "; allowed: 1 to " + std::to_string(shape_.vocab));
    const bool has_branches = std::any_of(weights_.layers.begin(), weights_.layers.end(), [](const Layer& layer) { return !layer.attn_out_norm.empty() || !layer.mlp_out_norm.empty(); });
    workspace_->prepare(pass, cache, shape_, has_branches, pool_->num_threads());
    const PassPlan plan(shape_, weights_, pass, pool_->num_threads(), *workspace_);
    std::vector<PassThread> threads;
    threads.reserve(static_cast<std::size_t>(pool_->num_threads()));
    for (int thread = 0; thread < pool_->num_threads(); ++thread)
        threads.emplace_back(shape_, weights_, kernels_, *workspace_, cache, pass, pool_->num_threads(), thread);
    pool_->run(workspace_->stages, [&](int stage, int begin, int end, int thread) { threads[static_cast<std::size_t>(thread)].run(stage, begin, end); });
    for (std::size_t request = 0; request < pass.slots.size(); ++request)
        cache.region(pass.slots[request]).num_scratch = static_cast<std::size_t>(pass.starts[request + 1] - pass.starts[request]);
}

}  // namespace fw
