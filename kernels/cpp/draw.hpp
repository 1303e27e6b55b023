// Drawing tokens: argmax, Gumbel-max, and the sums that truncation and log-probabilities need. Included inside the
// namespace of one instruction set.

// The mixer of foreword.sampling.noise: 23 random bits of (row key, token id).
inline Ints mix(Ints x) {
    x = (x ^ shift_right<16>(x)) * splat(0x7FEB352D);
    x = (x ^ shift_right<15>(x)) * splat(static_cast<std::int32_t>(0x846CA68Bu));
    return x ^ shift_right<16>(x);
}
inline Ints random_bits(const Noise& noise, Ints ids) {
    return shift_right<9>(mix(mix(ids ^ splat(noise.key_low)) ^ splat(noise.key_high)));
}
// -log(-log u), u = (bits + 1/2) 2^-23
inline Floats gumbel_of(Ints bits) {
    const Floats u = (to_floats(bits) + splat(0.5f)) * splat(0x1p-23f);
    return splat(0.0f) - log(splat(0.0f) - log(u));
}
// Above the largest noise there is: u = 1 - 2^-24 gives 24 ln 2 = 16.6355.
inline constexpr float kMostNoise = 16.64f;

inline Ints lane_numbers() {
    alignas(64) static constexpr std::int32_t kNumbers[kLanes] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    return load(kNumbers);
}
// Sixteen values, or those that are left and minus infinity behind them.
inline Floats load_some(const float* p, std::int32_t left) {
    if (left >= kLanes) return load(p);
    alignas(64) float padded[kLanes];
    for (int i = 0; i < kLanes; ++i) padded[i] = i < left ? p[i] : -__builtin_inff();
    return load(padded);
}

// Tokens of sixteen rows, or of those that are left.
inline Ints names_of(const std::int32_t* names, std::int32_t first, std::int32_t left) {
    if (left >= kLanes) return load(names + first);
    alignas(64) std::int32_t padded[kLanes] = {};
    for (int i = 0; i < left; ++i) padded[i] = names[first + i];
    return load(padded);
}

void best_greedy(const float* logits, std::int32_t first, std::int32_t count, Best& best) {
    Floats scores = load(best.scores);
    Ints ids = load(best.ids);
    const Ints numbers = lane_numbers();
    for (std::int32_t i = 0; i < count; i += kLanes) {
        const Floats score = load_some(logits + i, count - i);
        ids = where_less(scores, score, numbers + splat(first + i), ids);
        scores = where_less(scores, score, score, scores);
    }
    store(best.scores, scores);
    store(best.ids, ids);
}

// Scores below `lowest` are out. Sixteen tokens that even the largest noise cannot lift over their lane's best are skipped.
void best_perturbed(const float* logits, std::int32_t first, std::int32_t count, const Noise& noise, float lowest,
                    Best& best) {
    Floats scores = load(best.scores);
    Ints ids = load(best.ids);
    const Ints numbers = lane_numbers();
    const Floats temperature = splat(noise.temperature), threshold = splat(lowest), out = splat(-__builtin_inff());
    float floor = largest(scores);
    for (std::int32_t i = 0; i < count; i += kLanes) {
        const Floats raw = load_some(logits + i, count - i) / temperature;
        const Floats score = where_less(raw, threshold, out, raw);
        if (!any_less(splat(floor), score + splat(kMostNoise))) continue;
        const Ints rows = numbers + splat(first + i);
        const Ints tokens = noise.names == nullptr ? rows : names_of(noise.names, first + i, count - i);
        const Floats perturbed = score + gumbel_of(random_bits(noise, tokens));
        ids = where_less(scores, perturbed, rows, ids);
        scores = where_less(scores, perturbed, perturbed, scores);
        floor = largest(scores);
    }
    store(best.scores, scores);
    store(best.ids, ids);
}

// Maximum first, then the sum by lane = token % 16.
float log_sum_exp(const float* logits, std::size_t count) {
    Floats most = splat(-__builtin_inff());
    for (std::size_t i = 0; i < count; i += kLanes)
        most = max(most, load_some(logits + i, static_cast<std::int32_t>(count - i)));
    const float maximum = largest(most);
    Floats total = splat(0.0f);
    for (std::size_t i = 0; i < count; i += kLanes)
        total = total + exp(load_some(logits + i, static_cast<std::int32_t>(count - i)) - splat(maximum));
    alignas(64) float logs[kLanes];
    store(logs, log(splat(sum(total))));
    return maximum + logs[0];
}

double softmax_weights(const float* scores, std::size_t count, float most, float* weights) {
    double totals[kLanes] = {};
    for (std::size_t i = 0; i < count; i += kLanes) {
        const std::int32_t left = static_cast<std::int32_t>(count - i);
        alignas(64) float part[kLanes];
        store(part, exp(load_some(scores + i, left) - splat(most)));
        const int some = left < kLanes ? left : kLanes;
        for (int lane = 0; lane < kLanes; ++lane) totals[lane] += static_cast<double>(part[lane]);
        for (int lane = 0; lane < some; ++lane) weights[i + lane] = part[lane];
    }
    for (int width = kLanes / 2; width > 0; width /= 2)
        for (int lane = 0; lane < width; ++lane) totals[lane] += totals[lane + width];
    return totals[0];
}

void gumbel(const Noise& noise, std::int32_t first, std::int32_t count, float* values, std::int32_t* bits) {
    for (std::int32_t i = 0; i < count; i += kLanes) {
        const Ints mixed = random_bits(noise, lane_numbers() + splat(first + i));
        alignas(64) float value[kLanes];
        alignas(64) std::int32_t word[kLanes];
        store(value, gumbel_of(mixed));
        store(word, mixed);
        for (int lane = 0; lane < kLanes && i + lane < count; ++lane) {
            values[i + lane] = value[lane];
            bits[i + lane] = word[lane];
        }
    }
}
