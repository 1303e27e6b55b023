// Dot products of AVX2, which has no product of bytes that is exact for all of them: vpmaddubsw adds two in 16 bits and saturates there.
//
//   int8   Bytes become 16 bits without a widening instruction: of each four inputs those at even places by a mask, those at odd places
//          by a shift. Inputs lie as 16 bits in that order (`Activations::pairs`). Each product makes eight outputs, none split.
//   int4   15 * 127 * 16 = 30,480 fits in 16 bits: half a group is added up there, and widened once.
//
// Four tokens times sixteen outputs take eight registers for sums, four or two for weights, two or one for inputs.

inline constexpr int kDotTokens = 4;
inline constexpr bool kOneTileAtATime = true;
inline constexpr std::ptrdiff_t kAheadOfEight = 2048;

constexpr int tiles_side_by_side(int num_tokens) { return num_tokens == 1 ? 8 : 2; }

// Adds to a register, and keeps the compiler from adding in another order, which takes registers that there are not.
inline void add32(__m256i& sum, __m256i a) {
    sum = _mm256_add_epi32(sum, a);
    asm("" : "+x"(sum));
}
inline void add16(__m256i& sum, __m256i a) {
    sum = _mm256_add_epi16(sum, a);
    asm("" : "+x"(sum));
}

// `steps` times four inputs of `kTokens` rows against one tile.
template <int kTokens>
inline void dot_bytes(const std::uint8_t* weights, std::ptrdiff_t ahead, const std::int16_t* in, std::size_t stride, int steps, Ints (&sums)[kTokens]) {
    const __m256i mask = _mm256_set1_epi16(0xFF);
    FW_KEEP_LOOP
    for (int step = 0; step < steps; ++step) {
        if (ahead) prefetch(weights + ahead);
        const __m256i low = _mm256_loadu_si256(as_vector(weights)), high = _mm256_loadu_si256(as_vector(weights + 32));
        const __m256i low_even = _mm256_and_si256(low, mask), high_even = _mm256_and_si256(high, mask);
        FW_UNROLL
        for (int t = 0; t < kTokens; ++t) {
            const __m256i even = _mm256_set1_epi32(two_words(in + t * stride));
            add32(sums[t].lo, _mm256_madd_epi16(low_even, even));
            add32(sums[t].hi, _mm256_madd_epi16(high_even, even));
        }
        const __m256i low_odd = _mm256_srli_epi16(low, 8), high_odd = _mm256_srli_epi16(high, 8);
        FW_UNROLL
        for (int t = 0; t < kTokens; ++t) {
            const __m256i odd = _mm256_set1_epi32(two_words(in + t * stride + 2));
            add32(sums[t].lo, _mm256_madd_epi16(low_odd, odd));
            add32(sums[t].hi, _mm256_madd_epi16(high_odd, odd));
        }
        weights += 64;
        in += 4;
    }
}

template <Nibble kNibble, int kTokens>
inline void dot_nibbles(const std::uint8_t* weights, std::ptrdiff_t ahead, const std::int8_t* in, std::size_t stride, int steps, Ints (&sums)[kTokens]) {
    __m256i low_sums[kTokens], high_sums[kTokens];  // 16 bits
    FW_UNROLL
    for (int t = 0; t < kTokens; ++t) low_sums[t] = high_sums[t] = _mm256_setzero_si256();
    FW_KEEP_LOOP
    for (int step = 0; step < steps; ++step) {
        if (ahead) prefetch(weights + ahead);
        const __m256i low = load_weights<kNibble>(weights), high = load_weights<kNibble>(weights + 32);
        FW_UNROLL
        for (int t = 0; t < kTokens; ++t) {
            const __m256i four = _mm256_set1_epi32(four_bytes(in + t * stride));
            add16(low_sums[t], _mm256_maddubs_epi16(low, four));
            add16(high_sums[t], _mm256_maddubs_epi16(high, four));
        }
        weights += 64;
        in += 4;
    }
    const __m256i ones = _mm256_set1_epi16(1);
    FW_UNROLL
    for (int t = 0; t < kTokens; ++t) sums[t] = sums[t] + Ints{_mm256_madd_epi16(low_sums[t], ones), _mm256_madd_epi16(high_sums[t], ones)};
}

template <Nibble kNibble, int kTokens, int kTiles>
inline void dot(const std::uint8_t* const (&weights)[kTiles], std::ptrdiff_t ahead, const Activations& x, int token, std::size_t input,
                int steps, Ints (&sums)[kTokens][kTiles]) {
    FW_UNROLL
    for (int j = 0; j < kTiles; ++j) {
        Ints own[kTokens];
        FW_UNROLL
        for (int t = 0; t < kTokens; ++t) own[t] = sums[t][j];
        if constexpr (kNibble == Nibble::kNone)
            dot_bytes<kTokens>(weights[j], ahead, x.pair_row(token) + input, x.width, steps, own);
        else
            dot_nibbles<kNibble, kTokens>(weights[j], ahead, x.row(token) + input, x.width, steps, own);
        FW_UNROLL
        for (int t = 0; t < kTokens; ++t) sums[t][j] = own[t];
    }
}
