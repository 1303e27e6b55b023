// A stack of transformer layers: its shape, its weights, and one pass over many nodes of many requests.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "kernels.hpp"
#include "kv_cache.hpp"
#include "memory.hpp"
#include "thread_pool.hpp"

namespace fw {

struct Shape {
    int hidden = 0, intermediate = 0, num_layers = 0, num_heads = 0, num_kv_heads = 0, head_dim = 0, vocab = 0;
    float norm_eps = 1e-5f;
    int embedded_vocab = 0;        // rows of the embedding, where not as many as `vocab`, those of the head
    bool joins_embedding = false;  // layer 0 attends with [attn_norm(embedding), hidden_norm(input)]; both are given
    bool norms_residual = false;   // with it: the residual stream begins with hidden_norm(input)
    bool has_final_norm = true;
    std::vector<float> inverse_frequencies;  // radians a position, head_dim / 2 of them

    std::size_t hidden_width() const { return round_up(hidden, kGroup); }
    std::size_t intermediate_width() const { return round_up(intermediate, kGroup); }
    // Of what the query, key and value maps read.
    std::size_t qkv_input_width(int layer) const { return joins_embedding && layer == 0 ? 2 * hidden_width() : hidden_width(); }
    int num_embedded() const { return embedded_vocab > 0 ? embedded_vocab : vocab; }
    std::size_t dim() const { return round_up(head_dim, kLanes); }  // of a head, padded
    std::size_t attention_width() const { return round_up(num_heads * dim(), kGroup); }
    std::size_t qkv_width() const { return (num_heads + 2 * num_kv_heads) * dim(); }
};

// Norm weights are padded with zeros. An empty norm is left out.
struct Layer {
    std::span<const float> attn_norm, mlp_norm;  // hidden_width()
    std::span<const float> q_norm, k_norm;       // dim()
    Matrix qkv, o, gate_up, down;  // gate_up: tiles alternate
    std::span<const float> hidden_norm = {};  // hidden_width(); of layer 0 where it joins the embedding
};

struct Weights {
    std::vector<Layer> layers;
    std::span<const std::uint16_t> embedding;  // [vocab][hidden], bfloat16; empty: every pass brings inputs
    std::span<const float> final_norm;         // hidden_width()
    Matrix head;  // no tiles: no head
};

struct DrawSpec {
    int node;
    double temperature;  // 0 is greedy
    int top_k;
    double top_p, min_p;
    std::uint64_t key;

    bool truncates() const { return temperature > 0 && (top_k > 0 || top_p < 1.0 || min_p > 0.0); }
};

// What goes in and comes out of one pass. Memory belongs to the caller.
struct Pass {
    std::span<const std::int32_t> token_ids, parents, positions;
    std::span<const std::int32_t> starts, kv_lens, slots;
    const float* inputs = nullptr;  // [node][hidden] instead of embeddings, or beside them
    std::span<const DrawSpec> draws;
    std::span<const std::int32_t> names;  // the token of each row of the head, whose noise it is; empty: rows are tokens
    std::span<std::int32_t> choices;  // one a draw: rows
    std::span<const std::int32_t> logit_nodes;
    float* logits = nullptr;  // [logit node][vocab]
    std::span<const std::int32_t> top_nodes;
    int top_k = 0;
    std::int32_t* top_ids = nullptr;  // [top node][top_k]
    float* top_logprobs = nullptr;
    std::span<const std::int32_t> taps;
    float* tapped = nullptr;  // [node][tap][hidden]
    float* hidden = nullptr;  // [node][hidden]

    int num_nodes() const { return static_cast<int>(token_ids.size()); }
};

class Decoder {
public:
    // Throws std::invalid_argument for weights that do not have the sizes of the shape.
    Decoder(Shape shape, Weights weights, std::vector<std::shared_ptr<const WeightBytes>> memory,
            std::shared_ptr<ThreadPool> pool, const Kernels& kernels);
    ~Decoder();

    const Shape& shape() const { return shape_; }
    // The first layers with the same embedding, norm and head, sharing the weights. It runs on this decoder's caches.
    std::unique_ptr<Decoder> first_layers(int num_layers) const;
    // Throws std::invalid_argument for a pass that does not fit the shape or the cache.
    void forward(KvCache& cache, const Pass& pass);

    struct Workspace;

private:
    Shape shape_;
    Weights weights_;
    std::vector<std::shared_ptr<const WeightBytes>> memory_;  // kept alive
    std::shared_ptr<ThreadPool> pool_;
    const Kernels& kernels_;
    std::mutex mutex_;
    std::unique_ptr<Workspace> workspace_;
};

}  // namespace fw
