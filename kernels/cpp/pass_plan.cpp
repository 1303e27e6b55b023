// The stages of a pass. One begins wherever something is read that the stage before made.
#include <algorithm>

#include "workspace.hpp"

namespace fw {
namespace {

constexpr int kTileGrain = 8;  // tiles that a thread takes at a time: as many as are read side by side
constexpr int kRowGrain = 4;

// Few rows are quantised by every thread for itself: cheaper than fetching what the others made and waiting for it. Two threads do
// so up to 16 rows (measured); the more threads, the smaller a thread's part would be.
bool stay_private(int num_rows, int num_threads) { return num_rows <= 4 || (num_rows <= kBlock && num_rows * num_threads <= 32); }

}  // namespace

PassPlan::PassPlan(const Shape& shape, const Weights& weights, const Pass& pass, int num_threads, Decoder::Workspace& work)
    : shape_(shape), weights_(weights), pass_(pass), num_threads_(num_threads), work_(work) {
    work.stages.clear();
    work.steps.clear();
    add({&PassThread::embed}, pass.num_nodes(), kRowGrain);
    for (int layer = 0; layer < shape.num_layers; ++layer) add_layer(layer);
    add_end();
}

void PassPlan::add(Step step, int num_items, int grain, const int* begins) {
    work_.steps.push_back(step);
    work_.stages.push_back({num_items, grain, begins});
}

void PassPlan::add_product(Step::Work quantise, int num_rows, std::size_t width, Step::Work work, int layer, int num_items, int grain) {
    const bool is_private = stay_private(num_rows, num_threads_);
    if (!is_private) add({quantise, layer, nullptr, 0, width}, num_rows, kRowGrain);
    add({work, layer, is_private ? quantise : nullptr, num_rows, width, is_private}, num_items, grain);
}

void PassPlan::add_layer(int layer) {
    const int num_nodes = pass_.num_nodes(), head_tiles = static_cast<int>(shape_.dim()) / kLanes;
    const Layer& w = weights_.layers[static_cast<std::size_t>(layer)];
    add_taps(layer);
    add_product(&PassThread::quantise_attention_rows, num_nodes, shape_.qkv_input_width(layer), &PassThread::make_heads, layer,
                shape_.num_heads + 2 * shape_.num_kv_heads, std::max(kTileGrain / head_tiles, 1));
    if (shape_.norms_all_heads) add({&PassThread::norm_heads, layer}, num_nodes, kRowGrain);
    if (shape_.is_parallel) add_gate(layer);
    add({&PassThread::attend, layer}, static_cast<int>(work_.layout.tasks.size()), 1, work_.layout.first_tasks.data());
    add_product(&PassThread::quantise_attended_rows, num_nodes, shape_.attention_width(), &PassThread::add_attended, layer, w.o.num_tiles, kTileGrain);
    if (!w.attn_out_norm.empty()) add({&PassThread::add_attention_branch, layer}, num_nodes, kRowGrain);
    if (!shape_.is_parallel) add_gate(layer);
    add_product(&PassThread::quantise_gated_rows, num_nodes, shape_.intermediate_width(), &PassThread::add_gated, layer, w.down.num_tiles, kTileGrain);
    if (!w.mlp_out_norm.empty()) add({&PassThread::add_mlp_branch, layer}, num_nodes, kRowGrain);
}

void PassPlan::add_gate(int layer) {
    const int num_pairs = weights_.layers[static_cast<std::size_t>(layer)].gate_up.num_tiles / 2;
    add_product(&PassThread::quantise_mlp_rows, pass_.num_nodes(), shape_.hidden_width(), &PassThread::make_gated, layer, num_pairs, kTileGrain / 2);
}

void PassPlan::add_taps(int layer) {
    if (std::find(pass_.taps.begin(), pass_.taps.end(), layer) != pass_.taps.end()) add({&PassThread::tap, layer}, pass_.num_nodes(), kRowGrain);
}

void PassPlan::add_end() {
    add_taps(shape_.num_layers);
    if (pass_.hidden != nullptr) add({&PassThread::write_hidden}, pass_.num_nodes(), kRowGrain);
    const int num_rows = static_cast<int>(work_.head_rows.size());
    if (num_rows == 0) return;
    add_product(&PassThread::quantise_head_rows, num_rows, shape_.hidden_width(), &PassThread::look_at_logits, 0,
                (weights_.head.num_tiles + kStripTiles - 1) / kStripTiles, 1);
    add({&PassThread::finish_draws}, static_cast<int>(pass_.draws.size() + pass_.top_nodes.size()), 1);
}

}  // namespace fw
