// The memory of a decoder's passes, and the stages of one pass as each thread runs them.
#pragma once

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
    Buffer values_, scales_, sums_;
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
    std::vector<Best> best;  // of each fused draw
    RowScratch rows;
};

struct Decoder::Workspace {
    PassLayout layout;
    ActivationRows shared;
    Buffer residual, qkv, attended, gated, cos, sin, normed, logits;
    std::vector<ThreadMemory> threads;
    std::vector<HeadRow> head_rows;
    std::vector<FusedDraw> fused;
    std::vector<int> truncated;  // draws that need a whole row
    std::vector<int> row_of_node;

    // Throws what `layout.plan` throws, and std::bad_alloc. It takes all the memory of the pass: threads must not throw.
    void prepare(const Pass& pass, KvCache& cache, const Shape& shape, int num_threads);
    void plan_head(const Pass& pass, const Shape& shape);
};

// One pass, seen from one thread. Stages end where the next needs what other threads made.
class PassThread {
public:
    PassThread(const Shape& shape, const Weights& weights, const Kernels& kernels, Decoder::Workspace& work, ThreadPool& pool,
               KvCache& cache, const Pass& pass, int thread)
        : shape_(shape), weights_(weights), kernels_(kernels), work_(work), mine_(work.threads[thread]), pool_(pool), cache_(cache),
          pass_(pass), thread_(thread), num_threads_(pool.num_threads()), num_nodes_(pass.num_nodes()) {}

    void run();

private:
    Share share(int total) const { return Share(total, thread_, num_threads_); }
    // This thread's tiles of a matrix: whole pairs, since those of kSwiglu belong together.
    Share tile_share(const Matrix& m) const {
        Share pairs = share((m.num_tiles + 1) / 2);
        pairs.begin = pairs.begin * 2 < m.num_tiles ? pairs.begin * 2 : m.num_tiles;
        pairs.end = pairs.end * 2 < m.num_tiles ? pairs.end * 2 : m.num_tiles;
        return pairs;
    }
    float* residual(int node) const { return work_.residual.as<float>() + node * shape_.hidden_width(); }

    void embed();
    void load_embedding(int node, float* row) const;
    void tap(int layer);
    void attention_sublayer(int layer);
    void mlp_sublayer(int layer);
    // Turns queries and keys, and puts keys and values into the cache.
    void place_keys(int layer);
    void attend(int layer);
    void run_task(int layer, const AttentionTask& task);
    // Quantises rows for the next product: source(i) is row i, or its norm where `norm` is not empty.
    template <typename Source>
    Activations quantise_rows(int num_rows, std::size_t width, std::span<const float> norm, const Source& source);
    // What the query, key and value maps of a layer read.
    Activations quantise_attention_rows(int layer);
    void multiply(const Matrix& m, const Activations& x, int num_rows, float* rows, std::size_t stride, Into into,
                  const Matrix& next);
    void head();
    Activations quantise_head_rows();
    void head_strips(const Activations& x);
    void finish_rows();
    void write_hidden();

    const Shape& shape_;
    const Weights& weights_;
    const Kernels& kernels_;
    Decoder::Workspace& work_;
    ThreadMemory& mine_;
    ThreadPool& pool_;
    KvCache& cache_;
    const Pass& pass_;
    const int thread_, num_threads_, num_nodes_;
};

}  // namespace fw
