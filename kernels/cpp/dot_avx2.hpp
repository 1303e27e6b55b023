// Dot products in 256 bits: with AVX-VNNI where there is one, else by widening to 16 bits (the byte product of AVX2,
// vpmaddubsw, saturates: 255 * 127 * 2 does not fit in 16 bits).

constexpr int tiles_side_by_side(int num_tokens) { return num_tokens == 1 ? 8 : 2; }

template <Nibble kNibble>
inline __m256i load_weights(const std::uint8_t* p) {
    const __m256i bytes = _mm256_loadu_si256(as_vector(p));
    if constexpr (kNibble == Nibble::kLow) return _mm256_and_si256(bytes, _mm256_set1_epi8(15));
    if constexpr (kNibble == Nibble::kHigh) return _mm256_and_si256(_mm256_srli_epi16(bytes, 4), _mm256_set1_epi8(15));
    return bytes;
}

inline std::int32_t four_bytes(const std::int8_t* p) {
    std::int32_t four;
    __builtin_memcpy(&four, p, sizeof four);
    return four;
}

#if defined(__AVXVNNI__)

inline constexpr int kDotTokens = 3;

template <Nibble kNibble, int kTokens, int kTiles>
inline void dot(const std::uint8_t* const (&weights)[kTiles], std::ptrdiff_t ahead, const std::int8_t* x, std::size_t x_stride,
                int steps, Ints (&sums)[kTokens][kTiles]) {
    for (int step = 0; step < steps; ++step)
        FW_UNROLL
        for (int j = 0; j < kTiles; ++j) {
            if (ahead) prefetch(weights[j] + step * 64 + ahead);
            const __m256i low = load_weights<kNibble>(weights[j] + step * 64);
            const __m256i high = load_weights<kNibble>(weights[j] + step * 64 + 32);
            FW_UNROLL
            for (int t = 0; t < kTokens; ++t) {
                const __m256i in = _mm256_set1_epi32(four_bytes(x + t * x_stride + step * 4));
                sums[t][j].lo = _mm256_dpbusd_avx_epi32(sums[t][j].lo, low, in);
                sums[t][j].hi = _mm256_dpbusd_avx_epi32(sums[t][j].hi, high, in);
            }
        }
}

#else

inline constexpr int kDotTokens = 2;

// Four quarters of four outputs, each output as two partial sums side by side, to sixteen sums.
inline void add_pairs(const __m256i (&quarters)[4], Ints& into) {
    const __m256i low = _mm256_permute4x64_epi64(_mm256_hadd_epi32(quarters[0], quarters[1]), 0xD8);
    const __m256i high = _mm256_permute4x64_epi64(_mm256_hadd_epi32(quarters[2], quarters[3]), 0xD8);
    into = into + Ints{low, high};
}

template <Nibble kNibble, int kTokens, int kTiles>
inline void dot(const std::uint8_t* const (&weights)[kTiles], std::ptrdiff_t ahead, const std::int8_t* x, std::size_t x_stride,
                int steps, Ints (&sums)[kTokens][kTiles]) {
    FW_UNROLL
    for (int j = 0; j < kTiles; ++j) {
        __m256i quarters[kTokens][4];
        FW_UNROLL
        for (int t = 0; t < kTokens; ++t)
            FW_UNROLL
            for (int i = 0; i < 4; ++i) quarters[t][i] = _mm256_setzero_si256();
        for (int step = 0; step < steps; ++step) {
            if (ahead) prefetch(weights[j] + step * 64 + ahead);
            __m256i w[4];
            for (int half = 0; half < 2; ++half) {
                const __m256i bytes = load_weights<kNibble>(weights[j] + step * 64 + half * 32);
                w[2 * half] = _mm256_cvtepu8_epi16(_mm256_castsi256_si128(bytes));
                w[2 * half + 1] = _mm256_cvtepu8_epi16(_mm256_extracti128_si256(bytes, 1));
            }
            FW_UNROLL
            for (int t = 0; t < kTokens; ++t) {
                const __m256i in = _mm256_cvtepi8_epi16(_mm_set1_epi32(four_bytes(x + t * x_stride + step * 4)));
                FW_UNROLL
                for (int i = 0; i < 4; ++i)
                    quarters[t][i] = _mm256_add_epi32(quarters[t][i], _mm256_madd_epi16(w[i], in));
            }
        }
        FW_UNROLL
        for (int t = 0; t < kTokens; ++t) add_pairs(quarters[t], sums[t][j]);
    }
}

#endif
