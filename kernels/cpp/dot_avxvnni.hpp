// Dot products with AVX-VNNI: eight outputs times four inputs an instruction.

inline constexpr int kDotTokens = 3;
inline constexpr bool kOneTileAtATime = false;
inline constexpr std::ptrdiff_t kAheadOfEight = 0;

constexpr int tiles_side_by_side(int num_tokens) { return num_tokens == 1 ? 8 : 2; }

template <Nibble kNibble, int kTokens, int kTiles>
inline void dot(const std::uint8_t* const (&weights)[kTiles], std::ptrdiff_t ahead, const Activations& x, int token, std::size_t input,
                int steps, Ints (&sums)[kTokens][kTiles]) {
    const std::int8_t* in_row = x.row(token) + input;
    for (int step = 0; step < steps; ++step)
        FW_UNROLL
        for (int j = 0; j < kTiles; ++j) {
            if (ahead) prefetch(weights[j] + step * 64 + ahead);
            const __m256i low = load_weights<kNibble>(weights[j] + step * 64);
            const __m256i high = load_weights<kNibble>(weights[j] + step * 64 + 32);
            FW_UNROLL
            for (int t = 0; t < kTokens; ++t) {
                const __m256i in = _mm256_set1_epi32(four_bytes(in_row + t * x.width + step * 4));
                sums[t][j].lo = _mm256_dpbusd_avx_epi32(sums[t][j].lo, low, in);
                sums[t][j].hi = _mm256_dpbusd_avx_epi32(sums[t][j].hi, high, in);
            }
        }
}
