// Dot products with AVX-VNNI: eight outputs times four inputs an instruction. Six tokens times sixteen outputs take twelve registers for
// sums, more than the instruction's latency asks for, two for weights and one for inputs.

inline constexpr int kDotTokens = 6;
inline constexpr bool kFewRegisters = true;

// As with AVX2, where it was measured.
constexpr int tiles_side_by_side(int num_tokens) { return num_tokens == 1 ? 4 : 2; }
constexpr bool asks_ahead(int num_tokens) { return num_tokens > 1; }
constexpr int tiles_at_a_time(int bits, int num_tokens) { return bits == 8 && num_tokens == 1 ? 4 : 1; }

// Keeps the order in which they are written, so that no more registers are taken than there are.
inline void add_products(__m256i& sums, __m256i weights, __m256i four) {
    sums = _mm256_dpbusd_avx_epi32(sums, weights, four);
    asm("" : "+x"(sums));
}

template <Nibble kNibble, int kTokens, int kTiles>
inline void dot(const std::uint8_t* const (&weights)[kTiles], std::ptrdiff_t ahead, const Activations& x, int token, std::size_t input,
                int steps, Ints (&sums)[kTokens][kTiles]) {
    const std::int8_t* in = x.row(token) + input;
    FW_KEEP_LOOP
    for (int step = 0; step < steps; ++step) {
        FW_UNROLL
        for (int j = 0; j < kTiles; ++j) {
            const std::uint8_t* tile = weights[j] + 64 * step;
            if constexpr (kTiles == 1) prefetch(tile + ahead);  // several are not asked for; 0 names its own line
            const __m256i low = load_weights<kNibble>(tile), high = load_weights<kNibble>(tile + 32);
            FW_UNROLL
            for (int t = 0; t < kTokens; ++t) {
                const __m256i four = _mm256_set1_epi32(four_bytes(in + t * x.width));
                add_products(sums[t][j].lo, low, four);
                add_products(sums[t][j].hi, high, four);
            }
        }
        in += 4;
    }
}
