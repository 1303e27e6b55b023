// Dot products of AVX2, which has no product of bytes that is exact for all of them: vpmaddubsw adds two in 16 bits and saturates there.
//
//   int8   Bytes become 16 bits without a widening instruction: of each four inputs those at even places by a mask, those at odd places
//          by a shift. Inputs lie as 16 bits in that order (`Activations::pairs`). Each product makes eight outputs, none split.
//   int4   15 * 127 * 16 = 30,480 fits in 16 bits: half a group is added up there, and widened once.
//
// Four tokens times sixteen outputs take eight registers for sums, four or two for weights, two or one for inputs.

inline constexpr int kDotTokens = 4;
inline constexpr bool kFewRegisters = true;

constexpr int tiles_side_by_side(int num_tokens) { return num_tokens == 1 ? 4 : 2; }
constexpr bool asks_ahead(int num_tokens) { return num_tokens > 1; }
// int4: scales and minima are runs of memory of their own, and more than those of one tile come too slowly (measured).
constexpr int tiles_at_a_time(int bits, int num_tokens) { return bits == 4 || num_tokens > 2 ? 1 : 4 / num_tokens; }

// Adds the products of four bytes or two words of one token with sixteen outputs; `in` is the token's, in every lane. Both products stand
// before both sums: a sum that is ready takes any of four ports, and right behind its product it would often be one of the two that
// multiply. As text, since a compiler orders them its own way and copies registers.
inline void add_words(__m256i& low_sum, __m256i& high_sum, __m256i low, __m256i high, __m256i in) {
    __m256i low_product, high_product;
    asm("vpmaddwd %6, %4, %2\n\t"
        "vpmaddwd %6, %5, %3\n\t"
        "vpaddd %2, %0, %0\n\t"
        "vpaddd %3, %1, %1"
        : "+x"(low_sum), "+x"(high_sum), "=&x"(low_product), "=x"(high_product)
        : "x"(low), "x"(high), "x"(in));
}
inline void add_bytes(__m256i& low_sum, __m256i& high_sum, __m256i low, __m256i high, __m256i in) {
    __m256i low_product, high_product;
    asm("vpmaddubsw %6, %4, %2\n\t"
        "vpmaddubsw %6, %5, %3\n\t"
        "vpaddw %2, %0, %0\n\t"
        "vpaddw %3, %1, %1"
        : "+x"(low_sum), "+x"(high_sum), "=&x"(low_product), "=x"(high_product)
        : "x"(low), "x"(high), "x"(in));
}

template <bool kAsks, int kTokens, int kTiles>
FW_INLINE void dot_bytes(const std::uint8_t* const (&weights)[kTiles], std::ptrdiff_t ahead, const std::int16_t* in, std::size_t stride, int steps,
                         Ints (&sums)[kTokens][kTiles]) {
    const __m256i mask = _mm256_set1_epi16(0xFF);
    const std::uint8_t* tile[kTiles];
    FW_UNROLL
    for (int j = 0; j < kTiles; ++j) tile[j] = weights[j];
    FW_UNROLL_TWO
    for (int step = 0; step < steps; ++step) {
        FW_UNROLL
        for (int j = 0; j < kTiles; ++j) {
            if constexpr (kAsks) prefetch(tile[j] + ahead);
            if (kTokens > 1 && kTiles > 1) asm("" : "+r"(in));  // inputs are read again for each tile: there is no register to keep them
            const __m256i low = _mm256_loadu_si256(as_vector(tile[j])), high = _mm256_loadu_si256(as_vector(tile[j] + 32));
            const __m256i low_even = _mm256_and_si256(low, mask), high_even = _mm256_and_si256(high, mask);
            FW_UNROLL
            for (int t = 0; t < kTokens; ++t)
                add_words(sums[t][j].lo, sums[t][j].hi, low_even, high_even, _mm256_set1_epi32(two_words(in + t * stride)));
            const __m256i low_odd = _mm256_srli_epi16(low, 8), high_odd = _mm256_srli_epi16(high, 8);
            FW_UNROLL
            for (int t = 0; t < kTokens; ++t)
                add_words(sums[t][j].lo, sums[t][j].hi, low_odd, high_odd, _mm256_set1_epi32(two_words(in + t * stride + 2)));
            tile[j] += 64;
        }
        in += 4;
    }
}

template <Nibble kNibble, bool kAsks, int kTokens, int kTiles>
FW_INLINE void dot_nibbles(const std::uint8_t* const (&weights)[kTiles], std::ptrdiff_t ahead, const std::int8_t* in, std::size_t stride, int steps,
                           Ints (&sums)[kTokens][kTiles]) {
    Ints words[kTokens][kTiles];  // sums of 16 bits
    const std::uint8_t* tile[kTiles];
    FW_UNROLL
    for (int j = 0; j < kTiles; ++j) {
        tile[j] = weights[j];
        FW_UNROLL
        for (int t = 0; t < kTokens; ++t) words[t][j] = splat(0);
    }
    FW_UNROLL_TWO
    for (int step = 0; step < steps; ++step) {
        FW_UNROLL
        for (int j = 0; j < kTiles; ++j) {
            if constexpr (kAsks) prefetch(tile[j] + ahead);
            const __m256i low = load_weights<kNibble>(tile[j]), high = load_weights<kNibble>(tile[j] + 32);
            FW_UNROLL
            for (int t = 0; t < kTokens; ++t)
                add_bytes(words[t][j].lo, words[t][j].hi, low, high, _mm256_set1_epi32(four_bytes(in + t * stride)));
            tile[j] += 64;
        }
        in += 4;
    }
    const __m256i ones = _mm256_set1_epi16(1);
    FW_UNROLL
    for (int t = 0; t < kTokens; ++t)
        FW_UNROLL
        for (int j = 0; j < kTiles; ++j)
            sums[t][j] = sums[t][j] + Ints{_mm256_madd_epi16(words[t][j].lo, ones), _mm256_madd_epi16(words[t][j].hi, ones)};
}

template <Nibble kNibble, int kTokens, int kTiles>
inline void dot(const std::uint8_t* const (&weights)[kTiles], std::ptrdiff_t ahead, const Activations& x, int token, std::size_t input,
                int steps, Ints (&sums)[kTokens][kTiles]) {
    if constexpr (kNibble == Nibble::kNone) {
        if (ahead)
            dot_bytes<true, kTokens, kTiles>(weights, ahead, x.pair_row(token) + input, x.width, steps, sums);
        else
            dot_bytes<false, kTokens, kTiles>(weights, 0, x.pair_row(token) + input, x.width, steps, sums);
    } else {
        if (ahead)
            dot_nibbles<kNibble, true, kTokens, kTiles>(weights, ahead, x.row(token) + input, x.width, steps, sums);
        else
            dot_nibbles<kNibble, false, kTokens, kTiles>(weights, 0, x.row(token) + input, x.width, steps, sums);
    }
}
