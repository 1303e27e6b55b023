// Dot products with AVX-512 VNNI: sixteen outputs times four inputs an instruction.

inline constexpr int kDotTokens = 8;
inline constexpr bool kFewRegisters = false;

// As many as there are registers for their sums, while weights and inputs have some too; more bring nothing (measured).
constexpr int tiles_side_by_side(int num_tokens) { return num_tokens <= 2 ? 8 : num_tokens <= 6 ? 4 : 2; }
constexpr bool asks_ahead(int num_tokens) { return num_tokens > 2; }
constexpr int tiles_at_a_time(int, int) { return 8; }

template <Nibble kNibble>
inline __m512i load_weights(const std::uint8_t* p) {
    const __m512i bytes = _mm512_loadu_si512(p);
    if constexpr (kNibble == Nibble::kLow) return _mm512_and_si512(bytes, _mm512_set1_epi8(15));
    if constexpr (kNibble == Nibble::kHigh) return _mm512_and_si512(_mm512_srli_epi16(bytes, 4), _mm512_set1_epi8(15));
    return bytes;
}

template <Nibble kNibble, int kTokens, int kTiles>
inline void dot(const std::uint8_t* const (&weights)[kTiles], std::ptrdiff_t ahead, const Activations& x, int token, std::size_t input,
                int steps, Ints (&sums)[kTokens][kTiles]) {
    const std::int8_t* in_row = x.row(token) + input;
    for (int step = 0; step < steps; ++step) {
        __m512i w[kTiles];
        FW_UNROLL
        for (int j = 0; j < kTiles; ++j) {
            w[j] = load_weights<kNibble>(weights[j] + step * 64);
            if (ahead) prefetch(weights[j] + step * 64 + ahead);
        }
        FW_UNROLL
        for (int t = 0; t < kTokens; ++t) {
            std::int32_t four;
            __builtin_memcpy(&four, in_row + t * x.width + step * 4, sizeof four);
            const __m512i in = _mm512_set1_epi32(four);
            FW_UNROLL
            for (int j = 0; j < kTiles; ++j) sums[t][j].v = _mm512_dpbusd_epi32(sums[t][j].v, w[j], in);
        }
    }
}
