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

// A rotary embedding: the leading dimensions of a head turn, twice as many as there are frequencies.
struct Rope {
    std::vector<float> inverse_frequencies;  // radians a position
    float magnitude = 1.0f;                  // of cosines and sines
    float temperature = 0.0f;                // queries at position p are multiplied by 1 + temperature * ln(1 + p / temperature_length)
    int temperature_length = 1;              // a whole number of which p / it is
};

// What all layers share. What a plain model (Llama) has not is off by default: 0 for a cap, 1 for a scale.
struct Shape {
    int hidden = 0, intermediate = 0, num_layers = 0, num_heads = 0, num_kv_heads = 0, head_dim = 0, vocab = 0;
    float norm_eps = 1e-5f;
    int embedded_vocab = 0;        // rows of the embedding, where not as many as `vocab`, those of the head
    bool joins_embedding = false;  // layer 0 attends with [attn_norm(embedding), hidden_norm(input)]; both are given
    bool norms_residual = false;   // with it: the residual stream begins with hidden_norm(input)
    bool has_final_norm = true;
    bool removes_mean = false;     // norms are LayerNorms
    bool norms_all_heads = false;  // q_norm and k_norm are over all heads of a node as one row
    bool is_parallel = false;      // both blocks of a layer read the stream as it came, the second through mlp_norm likewise
    bool has_gelu = false;         // the gate goes through the tanh form of GELU, not through SiLU
    float embedding_scale = 1.0f;
    float attention_scale = 0.0f;  // of scores; 0: head_dim ^ -1/2
    float score_cap = 0.0f;        // scores s become cap tanh(s / cap)
    float logit_cap = 0.0f;
    std::vector<Rope> ropes = {Rope{}};

    std::size_t hidden_width() const { return round_up(hidden, kGroup); }
    std::size_t intermediate_width() const { return round_up(intermediate, kGroup); }
    // Of what the query, key and value maps read.
    std::size_t qkv_input_width(int layer) const { return joins_embedding && layer == 0 ? 2 * hidden_width() : hidden_width(); }
    int num_embedded() const { return embedded_vocab > 0 ? embedded_vocab : vocab; }
    std::size_t dim() const { return round_up(head_dim, kLanes); }  // of a head, padded
    std::size_t attention_width() const { return round_up(num_heads * dim(), kGroup); }
    std::size_t qkv_width() const { return (num_heads + 2 * num_kv_heads) * dim(); }
    std::size_t half() const;  // of the dimensions that turn, the most of all ropes
};

// Padded with zeros.
struct Norm {
    std::span<const float> weight;
    std::span<const float> bias = {};

    bool empty() const { return weight.empty(); }
};

// An empty norm is left out.
struct Layer {
    Norm attn_norm, mlp_norm;       // hidden_width(); of what the blocks read
    Norm q_norm, k_norm;            // dim(), or that for each head
    Matrix qkv, o, gate_up, down;   // gate_up: tiles alternate
    Norm hidden_norm = {};          // hidden_width(); of layer 0 where it joins the embedding
    Norm attn_out_norm = {}, mlp_out_norm = {};  // hidden_width(); of what the blocks add to the stream
    int rope = 0;                   // of Shape::ropes; -1: positions do not enter
    int window = 0;                 // keys that a query sees, its own included; 0: all
};

struct Weights {
    std::vector<Layer> layers;
    std::span<const std::uint16_t> embedding;  // [vocab][hidden], bfloat16; empty: every pass brings inputs
    Norm final_norm;                           // hidden_width()
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
