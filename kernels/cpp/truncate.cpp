#include "truncate.hpp"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

namespace fw {
namespace {

constexpr float kNever = -std::numeric_limits<float>::infinity();

// A logit as everything here takes it: NaN, which only a broken model gives, is never drawn and named last.
inline float ranked(float logit) { return logit == logit ? logit : kNever; }

// The k-th largest of at least k values, none of them NaN. Only values above the k-th largest so far are kept, so most are looked at once.
float kth_largest(const std::vector<float>& values, std::size_t k, std::vector<float>& kept) {
    const std::size_t room = std::max<std::size_t>(4 * k, 256);
    float least = kNever;
    kept.clear();
    const auto shrink = [&] {
        std::nth_element(kept.begin(), kept.begin() + static_cast<std::ptrdiff_t>(k - 1), kept.end(), std::greater<>());
        kept.resize(k);
        least = kept[k - 1];
    };
    for (const float value : values) {
        if (kept.size() >= k && !(value > least)) continue;
        kept.push_back(value);
        if (kept.size() >= room) shrink();
    }
    shrink();
    return least;
}

// The score of the last token of the smallest top set that holds `top_p` of the mass at or above `lowest`, which some score is.
float top_p_threshold(const Kernels& kernels, float largest, double top_p, float lowest, RowScratch& scratch) {
    auto& [scores, kept, weights, ids] = scratch;
    kept.clear();
    for (const float score : scores)
        if (score >= lowest) kept.push_back(score);
    weights.resize(round_up(kept.size(), kLanes));
    const double total = kernels.softmax_weights(kept.data(), kept.size(), largest, weights.data());
    // V tokens each lighter than (1 - p) / V of the total hold less than 1 - p together: the set lies above them.
    const double light = (1.0 - top_p) * total / static_cast<double>(kept.size());
    ids.clear();
    for (std::size_t i = 0; i < kept.size(); ++i)
        if (static_cast<double>(weights[i]) >= light) ids.push_back(static_cast<std::int32_t>(i));
    std::sort(ids.begin(), ids.end(), [&](std::int32_t a, std::int32_t b) {
        return kept[a] != kept[b] ? kept[a] > kept[b] : a < b;
    });
    double mass = 0.0;
    for (const std::int32_t i : ids) {
        mass += static_cast<double>(weights[i]);
        if (mass >= top_p * total) return kept[i];
    }
    return kept[ids.back()];
}

float threshold(const Kernels& kernels, const DrawSpec& draw, RowScratch& scratch) {
    const auto& scores = scratch.scores;
    const float largest = *std::max_element(scores.begin(), scores.end());
    if (largest == kNever) return kNever;  // no token has any mass
    float lowest = kNever;
    if (draw.top_k > 0 && static_cast<std::size_t>(draw.top_k) < scores.size())
        lowest = kth_largest(scores, static_cast<std::size_t>(draw.top_k), scratch.kept);
    if (draw.top_p < 1.0) lowest = std::max(lowest, top_p_threshold(kernels, largest, draw.top_p, lowest, scratch));
    if (draw.min_p > 0.0) lowest = std::max(lowest, static_cast<float>(static_cast<double>(largest) + std::log(draw.min_p)));
    return lowest;
}

}  // namespace

void RowScratch::reserve(std::size_t vocab) {
    scores.reserve(vocab);
    kept.reserve(vocab);
    weights.reserve(round_up(vocab, kLanes));
    ids.reserve(vocab);
}

Noise noise_of(const DrawSpec& draw, std::span<const std::int32_t> names) {
    return {static_cast<float>(draw.temperature), static_cast<std::int32_t>(draw.key & 0xFFFFFFFFu),
            static_cast<std::int32_t>(draw.key >> 32), names.empty() ? nullptr : names.data()};
}

Best no_best() {
    Best best;
    std::fill(best.scores, best.scores + kLanes, kNever);
    std::fill(best.ids, best.ids + kLanes, std::numeric_limits<std::int32_t>::max());
    return best;
}

void take_better(Best& best, const Best& other) {
    for (int lane = 0; lane < kLanes; ++lane) {
        const bool wins = other.scores[lane] > best.scores[lane] || (other.scores[lane] == best.scores[lane] && other.ids[lane] < best.ids[lane]);
        if (!wins) continue;
        best.scores[lane] = other.scores[lane];
        best.ids[lane] = other.ids[lane];
    }
}

Drawn best_lane(const Best& best) {
    Drawn drawn{best.scores[0], best.ids[0]};
    for (int lane = 1; lane < kLanes; ++lane)
        if (best.scores[lane] > drawn.score || (best.scores[lane] == drawn.score && best.ids[lane] < drawn.id))
            drawn = {best.scores[lane], best.ids[lane]};
    return drawn;
}

std::int32_t token_of(const Drawn& drawn, std::int32_t vocab) { return drawn.id < vocab && std::isfinite(drawn.score) ? drawn.id : kNoToken; }

std::int32_t draw_truncated(const Kernels& kernels, const float* logits, std::size_t vocab, const DrawSpec& draw, const Noise& noise,
                            RowScratch& scratch) {
    scratch.scores.resize(vocab);
    for (std::size_t i = 0; i < vocab; ++i) scratch.scores[i] = ranked(logits[i] / noise.temperature);
    const float lowest = threshold(kernels, draw, scratch);
    Best best = no_best();
    kernels.best_perturbed(logits, 0, static_cast<std::int32_t>(vocab), noise, lowest, best);
    return token_of(best_lane(best), static_cast<std::int32_t>(vocab));
}

namespace {

// A few, by insertion: one look at each logit. Ids come in order, so of equals the first is the lowest.
void name_few(const float* logits, std::size_t vocab, int count, std::int32_t* ids, float* scores) {
    std::fill_n(scores, count, -std::numeric_limits<float>::infinity());
    int num_found = 0;
    for (std::size_t i = 0; i < vocab; ++i) {
        const float score = ranked(logits[i]);
        if (num_found == count && !(score > scores[count - 1])) continue;
        int at = num_found < count ? num_found++ : count - 1;
        for (; at > 0 && scores[at - 1] < score; --at) {
            scores[at] = scores[at - 1];
            ids[at] = ids[at - 1];
        }
        scores[at] = score;
        ids[at] = static_cast<std::int32_t>(i);
    }
}

constexpr int kFew = 8;

}  // namespace

void name_likeliest(const Kernels& kernels, const float* logits, std::size_t vocab, int count, std::int32_t* ids, float* logprobs,
                    RowScratch& scratch) {
    if (const float total = count <= kFew ? kernels.log_sum_exp(logits, vocab) : kNever; std::isfinite(total)) {
        name_few(logits, vocab, count, ids, logprobs);
        for (int i = 0; i < count; ++i) logprobs[i] = logprobs[i] == kNever ? kNever : logprobs[i] - total;
        return;
    }
    auto& scores = scratch.scores;
    scores.resize(vocab);
    for (std::size_t i = 0; i < vocab; ++i) scores[i] = ranked(logits[i]);
    const float least = kth_largest(scores, static_cast<std::size_t>(count), scratch.kept);
    auto& candidates = scratch.ids;
    candidates.clear();
    for (std::size_t i = 0; i < vocab; ++i)
        if (scores[i] >= least) candidates.push_back(static_cast<std::int32_t>(i));
    std::sort(candidates.begin(), candidates.end(), [&](std::int32_t a, std::int32_t b) {
        return scores[a] != scores[b] ? scores[a] > scores[b] : a < b;
    });
    const float total = kernels.log_sum_exp(scores.data(), vocab);
    for (int i = 0; i < count; ++i) {
        ids[i] = candidates[i];
        logprobs[i] = scores[candidates[i]] == kNever ? kNever : scores[candidates[i]] - total;
    }
}

}  // namespace fw
