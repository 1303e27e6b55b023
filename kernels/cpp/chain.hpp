// Drafting a chain: pass after pass over one node a request, each reading the token that the last one drew.
#pragma once

#include "decoder.hpp"

namespace fw {

// What a pass hands to the next one beside the token, as its input.
enum class Carries { kNothing, kStream, kHidden };

// Chains of some requests. Memory belongs to the caller.
struct Chains {
    std::span<const std::int32_t> slots, token_ids, depths;  // of each request: the first token to read, most tokens to draw
    const float* inputs = nullptr;                           // [request][hidden], of the first pass
    Carries carries = Carries::kNothing;
    std::span<const DrawSpec> draws;      // [request][most depth]; `node` means nothing
    std::span<const std::int32_t> names;  // the token of each row of the head; empty: the rows are the tokens
    float threshold = 0;                  // a chain ends with a token whose pass is less sure of its likeliest one
    std::int32_t* drawn = nullptr;        // [request][most depth]; -1 behind the end
    int top_k = 1;
    std::int32_t* top_ids = nullptr;  // [request][most depth][top_k], likeliest first
    float* top_logprobs = nullptr;

    int num_requests() const { return static_cast<int>(slots.size()); }
    int most_depth() const { return slots.empty() ? 0 : static_cast<int>(draws.size() / slots.size()); }
};

// Every token that is read is committed, into rows that the caller has reserved; the last one drawn is not read. Throws std::invalid_argument as `Decoder::forward`.
void draft_chains(Decoder& decoder, KvCache& cache, const Chains& chains);

}  // namespace fw
