// Draws that need a whole row of logits: truncation (top-k, top-p, min-p) and the likeliest tokens.
#pragma once

#include <cstdint>
#include <vector>

#include "decoder.hpp"

namespace fw {

// Memory of one thread for one row at a time.
struct RowScratch {
    std::vector<float> scores, kept, weights;
    std::vector<std::int32_t> ids;

    // After this the functions below take no memory for rows of `vocab` logits, so they do not throw.
    void reserve(std::size_t vocab);
};

// NaN counts as minus infinity below. It cannot come of a sound model; refusing the pass would let a guess that plain decoding
// never reads stop an answer. A row that has nothing else is drawn kNoToken from, and who comes to it ends.
inline constexpr std::int32_t kNoToken = -1;

// The token that `foreword.sampling.warp.draw` would draw, up to the rounding of sums in its top-p.
std::int32_t draw_truncated(const Kernels& kernels, const float* logits, std::size_t vocab, const DrawSpec& draw, const Noise& noise,
                            RowScratch& scratch);

// The `count` likeliest tokens, likeliest first, equal ones by id; log-probabilities are raw.
void name_likeliest(const Kernels& kernels, const float* logits, std::size_t vocab, int count, std::int32_t* ids, float* logprobs,
                    RowScratch& scratch);

// `names` as in `Noise`; may be empty.
Noise noise_of(const DrawSpec& draw, std::span<const std::int32_t> names);
Best no_best();
// Lane by lane the better of two, of equal scores the lower id.
void take_better(Best& best, const Best& other);
// Score and token of the best lane; equal ones by id.
struct Drawn {
    float score;
    std::int32_t id;
};
Drawn best_lane(const Best& best);
// The token that was drawn; kNoToken where the best score is no number: NaN, or infinite either way.
std::int32_t token_of(const Drawn& drawn, std::int32_t vocab);

}  // namespace fw
