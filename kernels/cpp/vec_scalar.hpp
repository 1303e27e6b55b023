// Sixteen lanes as arrays, for processors without a path of their own (the compiler may vectorise the loops).
// Included inside the namespace of one instruction set.

// Register blocks of attention: queries a sweep over keys, queries and vectors a sweep over values.
inline constexpr int kScoreQueries = 2, kValueQueries = 2;
constexpr int key_blocks(int) { return 2; }
constexpr int value_vectors(int) { return 2; }

struct Floats {
    float v[16];
};
struct Ints {
    std::int32_t v[16];
};

template <typename Lane>
inline Floats make_floats(Lane lane) {
    Floats out;
    for (int i = 0; i < 16; ++i) out.v[i] = lane(i);
    return out;
}
template <typename Lane>
inline Ints make_ints(Lane lane) {
    Ints out;
    for (int i = 0; i < 16; ++i) out.v[i] = static_cast<std::int32_t>(lane(i));
    return out;
}

inline Floats load(const float* p) {
    return make_floats([&](int i) { return p[i]; });
}
inline Floats load(const std::uint16_t* p) {  // bfloat16
    return make_floats([&](int i) {
        const std::uint32_t bits = static_cast<std::uint32_t>(p[i]) << 16;
        float value;
        __builtin_memcpy(&value, &bits, sizeof value);
        return value;
    });
}
inline Ints load(const std::int32_t* p) {
    return make_ints([&](int i) { return p[i]; });
}
inline void store(float* p, Floats a) { __builtin_memcpy(p, a.v, sizeof a.v); }
inline void store(std::int32_t* p, Ints a) { __builtin_memcpy(p, a.v, sizeof a.v); }
inline Floats splat(float x) {
    return make_floats([&](int) { return x; });
}
inline Ints splat(std::int32_t x) {
    return make_ints([&](int) { return x; });
}

inline Floats operator+(Floats a, Floats b) {
    return make_floats([&](int i) { return a.v[i] + b.v[i]; });
}
inline Floats operator-(Floats a, Floats b) {
    return make_floats([&](int i) { return a.v[i] - b.v[i]; });
}
inline Floats operator*(Floats a, Floats b) {
    return make_floats([&](int i) { return a.v[i] * b.v[i]; });
}
inline Floats operator/(Floats a, Floats b) {
    return make_floats([&](int i) { return a.v[i] / b.v[i]; });
}
inline Floats fma(Floats a, Floats b, Floats c) {
    return make_floats([&](int i) { return __builtin_fmaf(a.v[i], b.v[i], c.v[i]); });
}
// The second where the two are equal or not comparable, as x86 does.
inline Floats max(Floats a, Floats b) {
    return make_floats([&](int i) { return a.v[i] > b.v[i] ? a.v[i] : b.v[i]; });
}
inline Floats min(Floats a, Floats b) {
    return make_floats([&](int i) { return a.v[i] < b.v[i] ? a.v[i] : b.v[i]; });
}
inline Floats abs(Floats a) {
    return make_floats([&](int i) { return __builtin_fabsf(a.v[i]); });
}

// Sums and products wrap: they are taken as unsigned.
inline std::uint32_t word(std::int32_t x) { return static_cast<std::uint32_t>(x); }
inline Ints operator+(Ints a, Ints b) {
    return make_ints([&](int i) { return word(a.v[i]) + word(b.v[i]); });
}
inline Ints operator-(Ints a, Ints b) {
    return make_ints([&](int i) { return word(a.v[i]) - word(b.v[i]); });
}
inline Ints operator*(Ints a, Ints b) {
    return make_ints([&](int i) { return word(a.v[i]) * word(b.v[i]); });
}
inline Ints operator^(Ints a, Ints b) {
    return make_ints([&](int i) { return a.v[i] ^ b.v[i]; });
}
inline Ints operator&(Ints a, Ints b) {
    return make_ints([&](int i) { return a.v[i] & b.v[i]; });
}
inline Ints operator|(Ints a, Ints b) {
    return make_ints([&](int i) { return a.v[i] | b.v[i]; });
}
template <int kBits>
inline Ints shift_left(Ints a) {
    return make_ints([&](int i) { return word(a.v[i]) << kBits; });
}
template <int kBits>
inline Ints shift_right(Ints a) {
    return make_ints([&](int i) { return word(a.v[i]) >> kBits; });
}

inline Floats to_floats(Ints a) {
    return make_floats([&](int i) { return static_cast<float>(a.v[i]); });
}
// To nearest, ties to even, for magnitudes below 2^22: adding 1.5 * 2^23 leaves the integer in the low bits.
inline Ints round_to_ints(Floats a) {
    return make_ints([&](int i) {
        const float shifted = a.v[i] + 12582912.0f;
        std::int32_t bits;
        __builtin_memcpy(&bits, &shifted, sizeof bits);
        return word(bits) - 0x4B400000u;
    });
}
inline Ints bits_of(Floats a) {
    Ints out;
    __builtin_memcpy(out.v, a.v, sizeof out.v);
    return out;
}
inline Floats floats_of(Ints a) {
    Floats out;
    __builtin_memcpy(out.v, a.v, sizeof out.v);
    return out;
}

inline Floats where_less(Floats x, Floats y, Floats a, Floats b) {
    return make_floats([&](int i) { return x.v[i] < y.v[i] ? a.v[i] : b.v[i]; });
}
inline Ints where_less(Floats x, Floats y, Ints a, Ints b) {
    return make_ints([&](int i) { return x.v[i] < y.v[i] ? a.v[i] : b.v[i]; });
}
inline bool any_less(Floats x, Floats y) {
    bool any = false;
    for (int i = 0; i < 16; ++i) any |= x.v[i] < y.v[i];
    return any;
}

inline void store_bytes(std::int8_t* p, Ints a) {
    for (int i = 0; i < 16; ++i) p[i] = static_cast<std::int8_t>(a.v[i]);
}
inline float half_to_float(std::uint16_t half) {
    const std::uint32_t sign = static_cast<std::uint32_t>(half & 0x8000u) << 16;
    const std::uint32_t magnitude = half & 0x7FFFu;
    if (magnitude < 0x400u) {  // zero or subnormal: magnitude * 2^-24, exact
        const float value = static_cast<float>(magnitude) * 0x1p-24f;
        return sign ? -value : value;
    }
    const std::uint32_t bits = sign | ((magnitude << 13) + (magnitude >= 0x7C00u ? 0x70000000u : 0x38000000u));
    float value;
    __builtin_memcpy(&value, &bits, sizeof value);
    return value;
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
inline Floats load_halves(const std::uint16_t* p) {
    return make_floats([&](int i) { return half_to_float(p[i]); });
}

inline float sum(Floats a) {
    for (int width = 8; width > 0; width /= 2)
        for (int i = 0; i < width; ++i) a.v[i] += a.v[i + width];
    return a.v[0];
}
inline std::int32_t sum(Ints a) {
    std::uint32_t total = 0;
    for (int i = 0; i < 16; ++i) total += word(a.v[i]);
    return static_cast<std::int32_t>(total);
}
inline float largest(Floats a) {
    float most = a.v[0];
    for (int i = 1; i < 16; ++i) most = a.v[i] > most ? a.v[i] : most;
    return most;
}

FW_INLINE void prefetch(const void* p) { __builtin_prefetch(p, 0, 2); }
