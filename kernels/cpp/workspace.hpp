// The memory of a decoder's passes, and the stages of one pass as each thread runs them.
#pragma once

#include <cmath>
#include <vector>

#include "decoder.hpp"
#include "layout.hpp"
#include "truncate.hpp"

namespace fw {

inline constexpr int kStripTiles = 8;  // tiles of the head whose logits are looked at together

// Memory of quantised rows; grows, never shrinks.
class ActivationRows {
public:
    void ensure(int num_tokens, std::size_t width);
    Activations view{};

private:
    Buffer values_, pairs_, scales_, sums_;
};

// A row of logits somebody wants: its node, and where it is written (null: it only feeds draws).
struct HeadRow {
    int node;
    float* logits;
};
// A draw decided while logits are made, without keeping them.
struct FusedDraw {
    int draw, row;
};

struct ThreadMemory {
    ActivationRows activations;
    Buffer row;        // one normed row
    Buffer attention;  // scratch of a task
    Buffer strip;      // logits of a few tiles, all rows
    std::vector<Best> best;  // of each fused draw, among the tokens this thread saw
    int last_strip = -1;     // of the head, the furthest that this thread saw
    int quantised_for;       // the stage whose rows `activations` holds
    RowScratch rows;
};

class PassThread;

// What is done for the items of a stage. A product comes with what quantises the rows it reads where every thread does so for itself.
struct Step {
    using Work = void (PassThread::*)(int layer, int begin, int end);
    Work work;
    int layer = 0;
    Work quantise = nullptr;
    int num_rows = 0;
    std::size_t width = 0;  // of the rows
    bool is_private = false;
};

struct Decoder::Workspace {
    PassLayout layout;
    ActivationRows shared;
    Buffer residual, qkv, attended, gated, branch, normed, logits;
    Buffer cos, sin, query_scales;  // [rope][node]
    std::vector<ThreadMemory> threads;
    std::vector<Stage> stages;
    std::vector<Step> steps;  // of each stage
    std::vector<HeadRow> head_rows;
    std::vector<FusedDraw> fused;
    std::vector<int> truncated;  // draws that need a whole row
    std::vector<int> row_of_node;

    // Throws what `layout.plan` throws, and std::bad_alloc. It takes all the memory of the pass: threads must not throw.
    // `has_branches`: some layer norms what it adds to the stream.
    void prepare(const Pass& pass, KvCache& cache, const Shape& shape, bool has_branches, int num_threads);
    void plan_head(const Pass& pass, const Shape& shape);
};

// One pass, seen from one thread: what is to be done for the items of each stage. A new stage begins wherever items of other threads are
// read.
class PassThread {
public:
    PassThread(const Shape& shape, const Weights& weights, const Kernels& kernels, Decoder::Workspace& work, KvCache& cache, const Pass& pass,
               int num_threads, int thread)
        : shape_(shape), weights_(weights), kernels_(kernels), work_(work), mine_(work.threads[thread]), cache_(cache), pass_(pass),
          thread_(thread), num_threads_(num_threads), num_nodes_(pass.num_nodes()),
          attention_scale_(shape.attention_scale > 0.0f ? shape.attention_scale : 1.0f / std::sqrt(static_cast<float>(shape.head_dim))) {}

    void run(int stage, int begin, int end);
private:
    float* residual(int node) const { return work_.residual.as<float>() + node * shape_.hidden_width(); }
    std::size_t rope_row(std::size_t rope, int node) const { return rope * static_cast<std::size_t>(num_nodes_) + static_cast<std::size_t>(node); }

    friend class PassPlan;

    // Each does items [begin, end) of its stage.
    void embed(int layer, int begin, int end);                // nodes
    void tap(int layer, int begin, int end);                  // nodes
    void make_heads(int layer, int begin, int end);           // query, key and value heads
    void norm_heads(int layer, int begin, int end);           // nodes
    void attend(int layer, int begin, int end);               // attention tasks
    void add_attended(int layer, int begin, int end);         // tiles
    void make_gated(int layer, int begin, int end);           // pairs of tiles
    void add_gated(int layer, int begin, int end);            // tiles
    void add_attention_branch(int layer, int begin, int end);  // nodes
    void add_mlp_branch(int layer, int begin, int end);       // nodes
    void write_hidden(int layer, int begin, int end);         // nodes
    void look_at_logits(int layer, int begin, int end);       // strips of the head
    void finish_draws(int layer, int begin, int end);         // draws and top nodes
    // Quantises rows [begin, end) of what a product reads.
    void quantise_attention_rows(int layer, int begin, int end);
    void quantise_attended_rows(int layer, int begin, int end);
    void quantise_mlp_rows(int layer, int begin, int end);
    void quantise_gated_rows(int layer, int begin, int end);
    void quantise_head_rows(int layer, int begin, int end);

    void load_embedding(int node, float* row) const;
    void turn_by(const Rope& rope, std::size_t row, int node);
    void place_head(int layer, int head, std::size_t request, int node);
    void add_branch(const Norm& out_norm, int begin, int end);
    Output branch_output(const Norm& out_norm) const;
    void normalise(const float* row, const Norm& norm, std::size_t size, std::size_t padded, float* out) const;
    void run_task(int layer, const AttentionTask& task);
    void look_at_strip(int index);
    std::int32_t best_of_threads(std::size_t fused) const;
    void quantise_row(const float* row, const Norm& norm, int index);
    void multiply(const Matrix& m, int begin, int end, int unit, const Output& out, const Matrix& next, int next_unit);
    int head_tiles() const { return static_cast<int>(shape_.dim()) / kLanes; }  // of a query, key or value head

    const Shape& shape_;
    const Weights& weights_;
    const Kernels& kernels_;
    Decoder::Workspace& work_;
    ThreadMemory& mine_;
    KvCache& cache_;
    const Pass& pass_;
    const int thread_, num_threads_, num_nodes_;
    const float attention_scale_;
    Activations rows_{};  // of the stage under way
};

// Writes the stages of a pass into the workspace.
class PassPlan {
public:
    PassPlan(const Shape& shape, const Weights& weights, const Pass& pass, int num_threads, Decoder::Workspace& work);

private:
    void add(Step step, int num_items, int grain, const int* begins = nullptr);
    void add_product(Step::Work quantise, int num_rows, std::size_t width, Step::Work work, int layer, int num_items, int grain);
    void add_layer(int layer);
    void add_gate(int layer);
    void add_end();
    void add_taps(int layer);

    const Shape& shape_;
    const Weights& weights_;
    const Pass& pass_;
    const int num_threads_;
    Decoder::Workspace& work_;
};

}  // namespace fw
