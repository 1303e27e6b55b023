// Sixteen lanes in one AVX-512 register. Included inside the namespace of one instruction set.
// Every operation here rounds exactly as its twin in vec_avx2.hpp and vec_scalar.hpp.

// Register blocks of attention: queries a sweep over keys, queries and vectors a sweep over values.
inline constexpr int kScoreQueries = 12, kValueQueries = 6;
constexpr int key_blocks(int) { return 2; }
constexpr int value_vectors(int) { return 4; }

struct Floats {
    __m512 v;
};
struct Ints {
    __m512i v;
};

inline Floats load(const float* p) { return {_mm512_loadu_ps(p)}; }
inline Floats load(const std::uint16_t* p) {  // bfloat16
    const __m256i upper = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(upper), 16))};
}
inline Ints load(const std::int32_t* p) { return {_mm512_loadu_si512(p)}; }
inline void store(float* p, Floats a) { _mm512_storeu_ps(p, a.v); }
inline void store(std::int32_t* p, Ints a) { _mm512_storeu_si512(p, a.v); }
inline Floats splat(float x) { return {_mm512_set1_ps(x)}; }
inline Ints splat(std::int32_t x) { return {_mm512_set1_epi32(x)}; }

inline Floats operator+(Floats a, Floats b) { return {_mm512_add_ps(a.v, b.v)}; }
inline Floats operator-(Floats a, Floats b) { return {_mm512_sub_ps(a.v, b.v)}; }
inline Floats operator*(Floats a, Floats b) { return {_mm512_mul_ps(a.v, b.v)}; }
inline Floats operator/(Floats a, Floats b) { return {_mm512_div_ps(a.v, b.v)}; }
inline Floats fma(Floats a, Floats b, Floats c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
// b where the two are equal or not comparable.
inline Floats max(Floats a, Floats b) { return {_mm512_max_ps(a.v, b.v)}; }
inline Floats min(Floats a, Floats b) { return {_mm512_min_ps(a.v, b.v)}; }
inline Floats abs(Floats a) { return {_mm512_abs_ps(a.v)}; }

inline Ints operator+(Ints a, Ints b) { return {_mm512_add_epi32(a.v, b.v)}; }
inline Ints operator-(Ints a, Ints b) { return {_mm512_sub_epi32(a.v, b.v)}; }
inline Ints operator*(Ints a, Ints b) { return {_mm512_mullo_epi32(a.v, b.v)}; }
inline Ints operator^(Ints a, Ints b) { return {_mm512_xor_si512(a.v, b.v)}; }
inline Ints operator&(Ints a, Ints b) { return {_mm512_and_si512(a.v, b.v)}; }
inline Ints operator|(Ints a, Ints b) { return {_mm512_or_si512(a.v, b.v)}; }
template <int kBits>
inline Ints shift_left(Ints a) {
    return {_mm512_slli_epi32(a.v, kBits)};
}
template <int kBits>
inline Ints shift_right(Ints a) {  // zeros come in
    return {_mm512_srli_epi32(a.v, kBits)};
}

inline Floats to_floats(Ints a) { return {_mm512_cvtepi32_ps(a.v)}; }
inline Ints round_to_ints(Floats a) { return {_mm512_cvtps_epi32(a.v)}; }  // to nearest, ties to even
inline Ints bits_of(Floats a) { return {_mm512_castps_si512(a.v)}; }
inline Floats floats_of(Ints a) { return {_mm512_castsi512_ps(a.v)}; }

// x < y ? a : b, lane by lane.
inline Floats where_less(Floats x, Floats y, Floats a, Floats b) {
    return {_mm512_mask_blend_ps(_mm512_cmp_ps_mask(x.v, y.v, _CMP_LT_OQ), b.v, a.v)};
}
inline Ints where_less(Floats x, Floats y, Ints a, Ints b) {
    return {_mm512_mask_blend_epi32(_mm512_cmp_ps_mask(x.v, y.v, _CMP_LT_OQ), b.v, a.v)};
}
inline bool any_less(Floats x, Floats y) { return _mm512_cmp_ps_mask(x.v, y.v, _CMP_LT_OQ) != 0; }

inline void store_bytes(std::int8_t* p, Ints a) {  // values fit in eight bits
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtepi32_epi8(a.v));
}
// Numbers in the order that costs least: here their own.
template <typename Number>
inline Floats load_mixed(const Number* p) {
    return load(p);
}
template <typename Number>
inline Floats in_order(Floats a) {
    return a;
}
template <typename Number>
inline Floats mixed(Floats a) {
    return a;
}
inline constexpr bool kWantsPairs = false;  // only AVX2 does
inline void store_pairs(std::int16_t*, Ints) {}
inline Floats load_halves(const std::uint16_t* p) {  // IEEE half precision
    return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
}

// Lanes i and i + 8, then 4, 2, 1: the same tree everywhere.
inline float sum(Floats a) {
    const __m256 eight = _mm256_add_ps(_mm512_castps512_ps256(a.v), _mm512_extractf32x8_ps(a.v, 1));
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}
inline std::int32_t sum(Ints a) { return _mm512_reduce_add_epi32(a.v); }
inline float largest(Floats a) { return _mm512_reduce_max_ps(a.v); }

FW_INLINE void prefetch(const void* p) { _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T1); }
