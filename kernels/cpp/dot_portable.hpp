// Dot products in plain C++, and with the ARM dot product where there is one.

inline constexpr int kDotTokens = 2;
inline constexpr bool kFewRegisters = false;
constexpr int tiles_side_by_side(int num_tokens) { return num_tokens == 1 ? 8 : 2; }
constexpr bool asks_ahead(int num_tokens) { return num_tokens > 1; }
constexpr int tiles_at_a_time(int, int) { return 8; }

template <Nibble kNibble>
inline int weight_of(std::uint8_t byte) {
    if constexpr (kNibble == Nibble::kLow) return byte & 15;
    if constexpr (kNibble == Nibble::kHigh) return byte >> 4;
    return byte;
}

#if defined(__ARM_FEATURE_DOTPROD)

// sdot takes signed bytes: a weight byte less 128 is signed, and 128 times the inputs is added back by a second dot product.
template <Nibble kNibble>
inline int8x16_t load_weights(const std::uint8_t* p) {
    const uint8x16_t bytes = vld1q_u8(p);
    if constexpr (kNibble == Nibble::kLow) return vreinterpretq_s8_u8(vandq_u8(bytes, vdupq_n_u8(15)));
    if constexpr (kNibble == Nibble::kHigh) return vreinterpretq_s8_u8(vshrq_n_u8(bytes, 4));
    return vreinterpretq_s8_u8(veorq_u8(bytes, vdupq_n_u8(128)));
}

template <Nibble kNibble, int kTokens, int kTiles>
inline void dot(const std::uint8_t* const (&weights)[kTiles], std::ptrdiff_t ahead, const Activations& x, int token, std::size_t input,
                int steps, Ints (&sums)[kTokens][kTiles]) {
    const std::int8_t* in_row = x.row(token) + input;
    for (int j = 0; j < kTiles; ++j) {
        int32x4_t quarters[kTokens][4], inputs[kTokens];
        for (int t = 0; t < kTokens; ++t) {
            inputs[t] = vdupq_n_s32(0);
            for (int i = 0; i < 4; ++i) quarters[t][i] = vld1q_s32(sums[t][j].v + 4 * i);
        }
        for (int step = 0; step < steps; ++step) {
            if (ahead) prefetch(weights[j] + step * 64 + ahead);
            for (int t = 0; t < kTokens; ++t) {
                std::int32_t four;
                __builtin_memcpy(&four, in_row + t * x.width + step * 4, sizeof four);
                const int8x16_t in = vreinterpretq_s8_s32(vdupq_n_s32(four));
                for (int i = 0; i < 4; ++i)
                    quarters[t][i] =
                        vdotq_s32(quarters[t][i], load_weights<kNibble>(weights[j] + step * 64 + i * 16), in);
                if constexpr (kNibble == Nibble::kNone) inputs[t] = vdotq_s32(inputs[t], vdupq_n_s8(64), in);
            }
        }
        for (int t = 0; t < kTokens; ++t)
            for (int i = 0; i < 4; ++i)
                vst1q_s32(sums[t][j].v + 4 * i, vaddq_s32(quarters[t][i], vshlq_n_s32(inputs[t], 1)));
    }
}

#else

template <Nibble kNibble, int kTokens, int kTiles>
inline void dot(const std::uint8_t* const (&weights)[kTiles], std::ptrdiff_t ahead, const Activations& x, int token, std::size_t input,
                int steps, Ints (&sums)[kTokens][kTiles]) {
    const std::int8_t* in_row = x.row(token) + input;
    for (int j = 0; j < kTiles; ++j)
        for (int step = 0; step < steps; ++step) {
            if (ahead) prefetch(weights[j] + step * 64 + ahead);
            for (int t = 0; t < kTokens; ++t) {
                const std::int8_t* in = in_row + t * x.width + step * 4;
                for (int o = 0; o < 16; ++o) {
                    const std::uint8_t* w = weights[j] + step * 64 + o * 4;
                    int four = 0;
                    for (int i = 0; i < 4; ++i) four += weight_of<kNibble>(w[i]) * in[i];
                    sums[t][j].v[o] += four;
                }
            }
        }
}

#endif
