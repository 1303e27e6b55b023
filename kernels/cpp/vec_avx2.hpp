// Sixteen lanes in two AVX2 registers. Included inside the namespace of one instruction set.

// Register blocks of attention: queries a sweep over keys, queries and vectors a sweep over values.
inline constexpr int kScoreQueries = 6, kValueQueries = 6;
constexpr int key_blocks(int num_queries) { return num_queries <= 2 ? 2 : 1; }  // twelve registers of sums, at most
constexpr int value_vectors(int num_queries) { return num_queries == 1 ? 4 : num_queries == 2 ? 2 : 1; }

struct Floats {
    __m256 lo, hi;
};
struct Ints {
    __m256i lo, hi;
};

inline const __m256i* as_vector(const void* p) { return static_cast<const __m256i*>(p); }

inline Floats load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
// Numbers in the order that costs least: of bfloat16 lanes 0, 2, 4 ... 14, 1, 3 ... 15, by a shift and a mask.
inline Floats load_mixed(const float* p) { return load(p); }
inline Floats load_mixed(const std::uint16_t* p) {
    const __m256i pairs = _mm256_loadu_si256(as_vector(p));
    return {_mm256_castsi256_ps(_mm256_slli_epi32(pairs, 16)), _mm256_castsi256_ps(_mm256_and_si256(pairs, _mm256_set1_epi32(-65536)))};
}
template <typename Number>
inline Floats in_order(Floats a) {
    if constexpr (sizeof(Number) == 4) return a;
    const __m256 low = _mm256_unpacklo_ps(a.lo, a.hi), high = _mm256_unpackhi_ps(a.lo, a.hi);
    return {_mm256_permute2f128_ps(low, high, 0x20), _mm256_permute2f128_ps(low, high, 0x31)};
}
template <typename Number>
inline Floats mixed(Floats a) {
    if constexpr (sizeof(Number) == 4) return a;
    const __m256 low = _mm256_permute2f128_ps(a.lo, a.hi, 0x20), high = _mm256_permute2f128_ps(a.lo, a.hi, 0x31);
    return {_mm256_shuffle_ps(low, high, 0x88), _mm256_shuffle_ps(low, high, 0xDD)};
}
inline Ints load(const std::int32_t* p) { return {_mm256_loadu_si256(as_vector(p)), _mm256_loadu_si256(as_vector(p + 8))}; }
inline void store(float* p, Floats a) {
    _mm256_storeu_ps(p, a.lo);
    _mm256_storeu_ps(p + 8, a.hi);
}
inline void store(std::int32_t* p, Ints a) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), a.lo);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p + 8), a.hi);
}
inline Floats splat(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
inline Ints splat(std::int32_t x) { return {_mm256_set1_epi32(x), _mm256_set1_epi32(x)}; }

inline Floats operator+(Floats a, Floats b) { return {_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi)}; }
inline Floats operator-(Floats a, Floats b) { return {_mm256_sub_ps(a.lo, b.lo), _mm256_sub_ps(a.hi, b.hi)}; }
inline Floats operator*(Floats a, Floats b) { return {_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi)}; }
inline Floats operator/(Floats a, Floats b) { return {_mm256_div_ps(a.lo, b.lo), _mm256_div_ps(a.hi, b.hi)}; }
inline Floats fma(Floats a, Floats b, Floats c) {
    return {_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)};
}
inline Floats max(Floats a, Floats b) { return {_mm256_max_ps(a.lo, b.lo), _mm256_max_ps(a.hi, b.hi)}; }
inline Floats min(Floats a, Floats b) { return {_mm256_min_ps(a.lo, b.lo), _mm256_min_ps(a.hi, b.hi)}; }
inline Floats abs(Floats a) {
    const __m256 sign = _mm256_set1_ps(-0.0f);
    return {_mm256_andnot_ps(sign, a.lo), _mm256_andnot_ps(sign, a.hi)};
}

inline Ints operator+(Ints a, Ints b) { return {_mm256_add_epi32(a.lo, b.lo), _mm256_add_epi32(a.hi, b.hi)}; }
inline Ints operator-(Ints a, Ints b) { return {_mm256_sub_epi32(a.lo, b.lo), _mm256_sub_epi32(a.hi, b.hi)}; }
inline Ints operator*(Ints a, Ints b) { return {_mm256_mullo_epi32(a.lo, b.lo), _mm256_mullo_epi32(a.hi, b.hi)}; }
inline Ints operator^(Ints a, Ints b) { return {_mm256_xor_si256(a.lo, b.lo), _mm256_xor_si256(a.hi, b.hi)}; }
inline Ints operator&(Ints a, Ints b) { return {_mm256_and_si256(a.lo, b.lo), _mm256_and_si256(a.hi, b.hi)}; }
inline Ints operator|(Ints a, Ints b) { return {_mm256_or_si256(a.lo, b.lo), _mm256_or_si256(a.hi, b.hi)}; }
template <int kBits>
inline Ints shift_left(Ints a) {
    return {_mm256_slli_epi32(a.lo, kBits), _mm256_slli_epi32(a.hi, kBits)};
}
template <int kBits>
inline Ints shift_right(Ints a) {
    return {_mm256_srli_epi32(a.lo, kBits), _mm256_srli_epi32(a.hi, kBits)};
}

inline Floats to_floats(Ints a) { return {_mm256_cvtepi32_ps(a.lo), _mm256_cvtepi32_ps(a.hi)}; }
inline Ints round_to_ints(Floats a) { return {_mm256_cvtps_epi32(a.lo), _mm256_cvtps_epi32(a.hi)}; }
inline Ints bits_of(Floats a) { return {_mm256_castps_si256(a.lo), _mm256_castps_si256(a.hi)}; }
inline Floats floats_of(Ints a) { return {_mm256_castsi256_ps(a.lo), _mm256_castsi256_ps(a.hi)}; }

inline Floats where_less(Floats x, Floats y, Floats a, Floats b) {
    return {_mm256_blendv_ps(b.lo, a.lo, _mm256_cmp_ps(x.lo, y.lo, _CMP_LT_OQ)),
            _mm256_blendv_ps(b.hi, a.hi, _mm256_cmp_ps(x.hi, y.hi, _CMP_LT_OQ))};
}
inline Ints where_less(Floats x, Floats y, Ints a, Ints b) {
    return bits_of(where_less(x, y, floats_of(a), floats_of(b)));
}
inline bool any_less(Floats x, Floats y) {
    const __m256 either = _mm256_or_ps(_mm256_cmp_ps(x.lo, y.lo, _CMP_LT_OQ), _mm256_cmp_ps(x.hi, y.hi, _CMP_LT_OQ));
    return _mm256_movemask_ps(either) != 0;
}

inline void store_bytes(std::int8_t* p, Ints a) {
    const __m256i words = _mm256_permute4x64_epi64(_mm256_packs_epi32(a.lo, a.hi), 0xD8);
    const __m128i bytes = _mm_packs_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), bytes);
}
// As 16 bits, of each four 0, 2, 1, 3: what products of AVX2 read, where there is no better instruction.
#if defined(__AVXVNNI__)
inline constexpr bool kWantsPairs = false;
#else
inline constexpr bool kWantsPairs = true;
#endif
inline void store_pairs(std::int16_t* p, Ints a) {
    const __m256i order = _mm256_setr_epi8(0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15, 0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15);
    const __m256i words = _mm256_permute4x64_epi64(_mm256_packs_epi32(a.lo, a.hi), 0xD8);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm256_shuffle_epi8(words, order));
}
inline Floats load_halves(const std::uint16_t* p) {
    return {_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))),
            _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p + 8)))};
}

inline float sum(Floats a) {
    const __m256 eight = _mm256_add_ps(a.lo, a.hi);
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}
inline std::int32_t sum(Ints a) {
    const __m256i eight = _mm256_add_epi32(a.lo, a.hi);
    const __m128i four = _mm_add_epi32(_mm256_castsi256_si128(eight), _mm256_extracti128_si256(eight, 1));
    const __m128i two = _mm_add_epi32(four, _mm_shuffle_epi32(four, 0x4E));
    return _mm_cvtsi128_si32(_mm_add_epi32(two, _mm_shuffle_epi32(two, 0xB1)));
}
inline float largest(Floats a) {
    const __m256 eight = _mm256_max_ps(a.lo, a.hi);
    const __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}

FW_INLINE void prefetch(const void* p) { _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T1); }

// Which weights of each byte a dot product takes.
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
inline std::int32_t two_words(const std::int16_t* p) {
    std::int32_t two;
    __builtin_memcpy(&two, p, sizeof two);
    return two;
}
