// Norms, quantisation, rotary turn, soft caps. Included inside the namespace of one instruction set.

// RMSNorm of one row. Lane i % 64 holds the sum of squares of elements i, i + 64, ...: no order depends on the width of a
// register. Padding is zero and stays zero.
void rms_norm(const float* x, const float* weight, float eps, std::size_t size, std::size_t padded, float* out) {
    Floats squares[4] = {splat(0.0f), splat(0.0f), splat(0.0f), splat(0.0f)};
    for (std::size_t i = 0; i < padded; i += kLanes) {
        const Floats v = load(x + i);
        Floats& lane = squares[i / kLanes % 4];
        lane = fma(v, v, lane);
    }
    const float mean = sum((squares[0] + squares[1]) + (squares[2] + squares[3])) / static_cast<float>(size);
    const Floats inverse = splat(1.0f / __builtin_sqrtf(mean + eps));
    for (std::size_t i = 0; i < padded; i += kLanes) store(out + i, load(x + i) * inverse * load(weight + i));
}

// LayerNorm: RMSNorm of what is left without the mean, whose sum has the same order.
void layer_norm(const float* x, const float* weight, const float* bias, float eps, std::size_t size, std::size_t padded, float* out) {
    Floats sums[4] = {splat(0.0f), splat(0.0f), splat(0.0f), splat(0.0f)};
    for (std::size_t i = 0; i < padded; i += kLanes) {
        Floats& lane = sums[i / kLanes % 4];
        lane = lane + load(x + i);
    }
    const Floats mean = splat(sum((sums[0] + sums[1]) + (sums[2] + sums[3])) / static_cast<float>(size));
    for (std::size_t i = 0; i < padded; i += kLanes) store(out + i, load(x + i) - mean);
    for (std::size_t i = size; i < padded; ++i) out[i] = 0.0f;
    rms_norm(out, weight, eps, size, padded, out);
    if (bias == nullptr) return;
    for (std::size_t i = 0; i < padded; i += kLanes) store(out + i, load(out + i) + load(bias + i));
}

// x = scale * value for each group of kGroup inputs, value in [-127, 127]. A group with NaN or infinity, which only a broken model
// gives, gets the scale NaN: every product of the row is then NaN, on every path.
void quantise(const float* x, const Activations& into, int token) {
    std::int8_t* values = into.values + static_cast<std::size_t>(token) * into.width;
    for (std::size_t group = 0; group < into.num_groups; ++group) {
        const float* in = x + group * kGroup;
        Floats part[4];
        for (int i = 0; i < 4; ++i) part[i] = load(in + i * kLanes);
        const float most = largest(max(max(abs(part[0]), abs(part[1])), max(abs(part[2]), abs(part[3]))));
        Floats zero = splat(0.0f);  // x - x is NaN where x is not finite
        for (int i = 0; i < 4; ++i) zero = zero + (part[i] - part[i]);
        const bool is_finite = sum(zero) == 0.0f;
        // A group too small to be divided by is taken as zero.
        const float inverse = most > 1e-30f ? 127.0f / most : 0.0f;
        if (!is_finite)
            for (int i = 0; i < 4; ++i) part[i] = splat(0.0f);
        Ints rounded[4];
        for (int i = 0; i < 4; ++i) {
            rounded[i] = round_to_ints(part[i] * splat(inverse));
            store_bytes(values + group * kGroup + i * kLanes, rounded[i]);
            if constexpr (kWantsPairs) store_pairs(into.pairs + static_cast<std::size_t>(token) * into.width + group * kGroup + i * kLanes, rounded[i]);
        }
        into.scales[into.scale_index(token, group)] = !is_finite ? __builtin_nanf("") : most > 1e-30f ? most / 127.0f : 0.0f;
        const std::int32_t first = sum(rounded[0] + rounded[1]), second = sum(rounded[2] + rounded[3]);
        into.sums[into.sum_index(token, group, 0)] = first;
        into.sums[into.sum_index(token, group, 1)] = second;
        into.sums[into.sum_index(token, group, 2)] = -128 * (first + second);
    }
}

void soft_cap(float* x, std::size_t count, float cap) {
    const Floats most = splat(cap), inverse = splat(1.0f / cap);
    for (std::size_t i = 0; i < count; i += kLanes) store(x + i, soft_cap(load(x + i), most, inverse));
}

void rotate(float* head, const float* cos, const float* sin, std::size_t half, std::size_t padded, float scale) {
    for (std::size_t i = 0; i < half; ++i) {
        const float a = head[i], b = head[i + half];
        head[i] = __builtin_fmaf(a, cos[i], -(b * sin[i]));
        head[i + half] = __builtin_fmaf(b, cos[i], a * sin[i]);
    }
    for (std::size_t i = 0; i < padded; i += kLanes) store(head + i, load(head + i) * splat(scale));
}
