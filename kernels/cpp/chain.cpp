#include "chain.hpp"

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <vector>

namespace fw {
namespace {

// The requests that go on, and what their next pass reads and says.
struct Round {
    std::vector<int> requests;
    std::vector<std::int32_t> slots, token_ids, kv_lens, positions, parents, starts, nodes, choices, top_ids;
    std::vector<float> inputs, carried, top_logprobs;
    std::vector<DrawSpec> draws;

    void resize(std::size_t count, std::size_t width, std::size_t top_k) {
        for (auto* column : {&slots, &token_ids, &kv_lens, &positions, &nodes, &choices}) column->resize(count);
        parents.assign(count, -1);
        starts.resize(count + 1);
        draws.resize(count);
        top_ids.resize(count * top_k);
        top_logprobs.resize(count * top_k);
        inputs.resize(count * width);
        carried.resize(count * width);
    }
};

void check(const Chains& c) {
    const std::size_t count = c.slots.size();
    if (c.token_ids.size() != count || c.depths.size() != count || (count > 0 && c.draws.size() % count != 0))
        throw std::invalid_argument("the columns of the chains differ in length");
    for (const std::int32_t depth : c.depths)
        if (depth < 1 || depth > c.most_depth()) throw std::invalid_argument("a chain is deeper than its draws");
    if ((c.carries == Carries::kNothing) != (c.inputs == nullptr)) throw std::invalid_argument("what is carried on begins as an input");
}

// One pass over the round's requests, whose inputs and tokens stand ready.
void read(Decoder& decoder, KvCache& cache, const Chains& c, int step, Round& round) {
    const std::size_t count = round.requests.size();
    for (std::size_t i = 0; i < count; ++i) {
        const int node = static_cast<int>(i);
        round.slots[i] = c.slots[round.requests[i]];
        round.kv_lens[i] = round.positions[i] = static_cast<std::int32_t>(cache.length(round.slots[i]));
        round.starts[i] = round.nodes[i] = node;
        round.draws[i] = c.draws[static_cast<std::size_t>(round.requests[i]) * c.most_depth() + step];
        round.draws[i].node = node;
    }
    round.starts[count] = static_cast<int>(count);
    const std::int32_t last_stream = decoder.shape().num_layers;
    Pass pass;
    pass.token_ids = round.token_ids;
    pass.parents = round.parents;
    pass.positions = round.positions;
    pass.starts = round.starts;
    pass.kv_lens = round.kv_lens;
    pass.slots = round.slots;
    pass.draws = round.draws;
    pass.names = c.names;
    pass.choices = round.choices;
    pass.top_nodes = round.nodes;
    pass.top_k = c.top_k;
    pass.top_ids = round.top_ids.data();
    pass.top_logprobs = round.top_logprobs.data();
    if (c.carries != Carries::kNothing) pass.inputs = round.inputs.data();
    if (c.carries == Carries::kHidden) pass.hidden = round.carried.data();
    if (c.carries == Carries::kStream) {
        pass.taps = {&last_stream, 1};
        pass.tapped = round.carried.data();
    }
    decoder.forward(cache, pass);
    for (const std::int32_t slot : round.slots) cache.commit(slot, {0});
}

}  // namespace

void draft_chains(Decoder& decoder, KvCache& cache, const Chains& c) {
    check(c);
    const std::size_t width = c.carries == Carries::kNothing ? 0 : static_cast<std::size_t>(decoder.shape().hidden);
    const std::size_t top_k = static_cast<std::size_t>(c.top_k);
    const auto named = [&](std::int32_t row) { return c.names.empty() ? row : c.names[static_cast<std::size_t>(row)]; };
    std::fill_n(c.drawn, c.draws.size(), -1);
    Round round;
    round.resize(c.slots.size(), width, top_k);
    for (int request = 0; request < c.num_requests(); ++request) round.requests.push_back(request);
    std::copy(c.token_ids.begin(), c.token_ids.end(), round.token_ids.begin());
    if (c.inputs != nullptr) std::copy_n(c.inputs, round.inputs.size(), round.inputs.begin());
    for (int step = 0; !round.requests.empty(); ++step) {
        read(decoder, cache, c, step, round);
        std::size_t num_left = 0;
        for (std::size_t i = 0; i < round.requests.size(); ++i) {
            const int request = round.requests[i];
            const std::size_t at = static_cast<std::size_t>(request) * c.most_depth() + step;
            const float likeliest = round.top_logprobs[i * top_k];
            if (round.choices[i] < 0) continue;  // damaged weights: the chain ends before it
            c.drawn[at] = named(round.choices[i]);
            for (std::size_t k = 0; k < top_k; ++k) {
                c.top_ids[at * top_k + k] = named(round.top_ids[i * top_k + k]);
                c.top_logprobs[at * top_k + k] = round.top_logprobs[i * top_k + k];
            }
            if (step + 1 == c.depths[request] || std::exp(likeliest) < c.threshold) continue;
            round.requests[num_left] = request;
            round.token_ids[num_left] = c.drawn[at];
            std::copy_n(round.carried.begin() + static_cast<std::ptrdiff_t>(i * width), width,
                        round.inputs.begin() + static_cast<std::ptrdiff_t>(num_left * width));
            ++num_left;
        }
        round.requests.resize(num_left);
        round.resize(num_left, width, top_k);
    }
}

}  // namespace fw
