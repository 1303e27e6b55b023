// Products of quantised activations and packed weights: the part all instruction sets share. Included inside the namespace of
// one of them, after its dot products:
//
//   template <Nibble, kTokens, kTiles> void dot(weights[kTiles], ahead, x, token, input, steps, sums[kTokens][kTiles])
//       adds, for `steps` times four inputs from `input` of kTokens rows, unsigned weights times signed activations to 16 int32 sums; exact;
//       asks for the cache lines `ahead` bytes further on (0: none)
//   kDotTokens   tokens that share a load of weights
//   tiles_side_by_side(num_tokens)   tiles that are read at a time for so many tokens, at most kDotTokens (int8)
//   asks_ahead(num_tokens)   whether their weights have to be asked for
//   kFewRegisters   there are none for the totals of all groups, which stay in memory, and few for sums:
//   tiles_at_a_time(bits, num_tokens)   tiles whose sums there are registers for
//
// Integer sums are exact; what follows them is one fused multiply-add a group, groups ascending, on every path:
//   int8   y = scale * (sum over groups of x_scale * dot)                    weight = scale * (byte - 128)
//   int4   y = sum over groups, halves of x_scale * (scale * dot + minimum * sum of x)    weight = scale * nibble + minimum

inline void finish(const Output& out, int token, int tile, Floats value) {
    float* at = out.rows + static_cast<std::size_t>(token) * out.stride + static_cast<std::size_t>(tile - out.first_tile) * kLanes;
    store(at, out.into == Into::kAdd ? load(at) + value : value);
}

// As a function of its own, so that the loops around the gate of most models stay as they are.
[[gnu::noinline]] inline void store_geglu(float* at, Floats gate, Floats up) { store(at, gelu_tanh(gate) * up); }

inline void finish_pair(const Output& out, int token, int tile, Floats first, Floats second) {
    if (out.into == Into::kSwiglu || out.into == Into::kGeglu) {
        float* at = out.rows + static_cast<std::size_t>(token) * out.stride + static_cast<std::size_t>((tile - out.first_tile) / 2) * kLanes;
        if (out.into == Into::kSwiglu)
            store(at, silu(first) * second);
        else
            store_geglu(at, first, second);
        return;
    }
    finish(out, token, tile, first);
    finish(out, token, tile + 1, second);
}

template <int kTokens, int kTiles>
inline void finish_tiles(const Matrix& m, const Output& out, int token, int tile, const Floats (&totals)[kTokens][kTiles],
                         int num_tokens = kTokens) {
    for (int t = 0; t < num_tokens; ++t) {
        Floats value[kTiles];
        FW_UNROLL
        for (int j = 0; j < kTiles; ++j) {
            const std::size_t column = static_cast<std::size_t>(tile + j) * kLanes;
            value[j] = totals[t][j];
            if (m.scales) value[j] = value[j] * load(m.scales + column);
            if (m.bias) value[j] = value[j] + load(m.bias + column);
        }
        if constexpr (kTiles == 1) {
            finish(out, token + t, tile, value[0]);
        } else {
            FW_UNROLL
            for (int j = 0; j < kTiles; j += 2) finish_pair(out, token + t, tile + j, value[j], value[j + 1]);
        }
    }
}

// Keeps the compiler from holding a copy in a register, or on the stack where there is none.
inline void keep_in_memory(Floats& a) { asm("" : "+m"(a)); }

// What is kept of one group of inputs beside their values, from the first token of a sweep on.
struct GroupInputs {
    const std::int32_t* sums;  // [3][kBlock]
    const float* scales;
};

// Adds one group of int8 weights to the totals, [kTokens][kColumns].
template <int kTokens, int kTiles, int kColumns>
FW_INLINE void add_int8_group(const Activations& x, int token, std::size_t group, GroupInputs in, const std::uint8_t* const (&weights)[kTiles],
                              std::ptrdiff_t ahead, Floats* totals) {
    Ints sums[kTokens][kTiles];
    const std::int32_t* starts = in.sums + 2 * kBlock;  // (byte - 128) x = byte x - 128 x
    FW_UNROLL
    for (int t = 0; t < kTokens; ++t) {
        const Ints start = splat(starts[t]);
        FW_UNROLL
        for (int j = 0; j < kTiles; ++j) sums[t][j] = start;
    }
    dot<Nibble::kNone, kTokens, kTiles>(weights, ahead, x, token, group * kGroup, kGroup / 4, sums);
    FW_UNROLL
    for (int t = 0; t < kTokens; ++t) {
        const Floats scale = splat(in.scales[t]);
        FW_UNROLL
        for (int j = 0; j < kTiles; ++j) {
            Floats& total = totals[t * kColumns + j];
            total = fma(to_floats(sums[t][j]), scale, total);
            if constexpr (kFewRegisters) keep_in_memory(total);
        }
    }
}

// Adds half a group of int4 weights to the totals.
template <Nibble kHalf, int kTokens, int kTiles, int kColumns>
FW_INLINE void add_int4_half(const Matrix& m, const Activations& x, int token, int tile, std::size_t group,
                             GroupInputs in, const std::uint8_t* const (&weights)[kTiles], std::ptrdiff_t ahead, Floats* totals) {
    constexpr int kIndex = kHalf == Nibble::kLow ? 0 : 1;
    Ints sums[kTokens][kTiles];
    FW_UNROLL
    for (int t = 0; t < kTokens; ++t)
        FW_UNROLL
        for (int j = 0; j < kTiles; ++j) sums[t][j] = splat(0);
    dot<kHalf, kTokens, kTiles>(weights, ahead, x, token, group * kGroup + kIndex * kSubgroup, kSubgroup / 4, sums);
    FW_UNROLL
    for (int j = 0; j < kTiles; ++j) {
        const std::size_t subgroup = (tile + j) * 2 * x.num_groups + 2 * group + kIndex;
        const Floats scale = load_halves(m.half_scales + subgroup * 2 * kLanes);
        const Floats minimum = load_halves(m.half_scales + subgroup * 2 * kLanes + kLanes);
        FW_UNROLL
        for (int t = 0; t < kTokens; ++t) {
            const Floats sum_x = to_floats(splat(in.sums[kIndex * kBlock + t]));
            const Floats part = fma(minimum, sum_x, to_floats(sums[t][j]) * scale);
            Floats& total = totals[t * kColumns + j];
            total = fma(part, splat(in.scales[t]), total);
            if constexpr (kFewRegisters) keep_in_memory(total);
        }
    }
}

// The sums of kTokens tokens and kTiles tiles of kBits bits a weight over all groups.
template <int kBits, int kTokens, int kTiles, int kColumns>
FW_INLINE void add_groups(const Matrix& m, const Activations& x, int token, int tile, std::ptrdiff_t ahead, Floats* totals) {
    const std::uint8_t* weights[kTiles];
    FW_UNROLL
    for (int j = 0; j < kTiles; ++j) weights[j] = m.tiles + (tile + j) * m.tile_bytes();
    FW_UNROLL
    for (int t = 0; t < kTokens; ++t)
        FW_UNROLL
        for (int j = 0; j < kTiles; ++j) totals[t * kColumns + j] = splat(0.0f);
    GroupInputs in{x.sums + x.sum_index(token, 0, 0), x.scales + x.scale_index(token, 0)};
    for (std::size_t group = 0; group < x.num_groups; ++group) {
        if constexpr (kBits == 4) {
            add_int4_half<Nibble::kLow, kTokens, kTiles, kColumns>(m, x, token, tile, group, in, weights, ahead, totals);
            add_int4_half<Nibble::kHigh, kTokens, kTiles, kColumns>(m, x, token, tile, group, in, weights, 0, totals);
        } else {
            add_int8_group<kTokens, kTiles, kColumns>(x, token, group, in, weights, ahead, totals);
        }
        FW_UNROLL
        for (int j = 0; j < kTiles; ++j) weights[j] += kGroup * kLanes * kBits / 8;
        in.sums += 3 * kBlock;
        in.scales += kBlock;
    }
}

// As a function of its own, so that nothing around it takes registers from its loops.
template <int kBits, int kTokens, int kTiles, int kColumns>
[[gnu::noinline]] void add_groups_apart(const Matrix& m, const Activations& x, int token, int tile, std::ptrdiff_t ahead, Floats* totals) {
    add_groups<kBits, kTokens, kTiles, kColumns>(m, x, token, tile, ahead, totals);
}

template <int kBits, int kTokens, int kTiles>
void product(const Matrix& m, const Activations& x, int token, int tile, const Output& out, std::ptrdiff_t ahead) {
    Floats totals[kTokens][kTiles];
    for (int j = 0; j < kTiles && m.scales; ++j) prefetch(m.scales + static_cast<std::size_t>(tile + j) * kLanes);
    if constexpr (kFewRegisters) {
        constexpr int kMost = tiles_at_a_time(kBits, kTokens), kAtATime = kMost < kTiles ? kMost : kTiles;
        for (int j = 0; j < kTiles; j += kAtATime)
            add_groups_apart<kBits, kTokens, kAtATime, kTiles>(m, x, token, tile + j, ahead, &totals[0][j]);
    } else {
        add_groups<kBits, kTokens, kTiles, kTiles>(m, x, token, tile, ahead, &totals[0][0]);
    }
    finish_tiles<kTokens, kTiles>(m, out, token, tile, totals);
}

// From a tile to what this thread reads after this one and those beside it: the next ones, or what comes `then`.
inline std::ptrdiff_t distance_ahead(const Matrix& m, int tile, int num_tiles, int tile_end, const std::uint8_t* then) {
    if (tile + num_tiles < tile_end) return static_cast<std::ptrdiff_t>(num_tiles * m.tile_bytes());
    return then ? then - (m.tiles + tile * m.tile_bytes()) : 0;
}

// All tokens against one or two tiles, so that weights come from memory once. Each sweep asks for the next ones: memory has something to
// do all the time, and what has come costs little to ask for.
template <int kTiles>
inline void product_tiles(const Matrix& m, const Activations& x, int num_tokens, int tile, const Output& out,
                          std::ptrdiff_t ahead) {
    for (int block = 0; block < num_tokens; block += kBlock)  // scales lie by block, so no sweep goes beyond one
        in_even_pieces<kDotTokens>(num_tokens - block < kBlock ? num_tokens - block : kBlock, [&]<int kTokens>(int first) {
            if (m.bits == 4)
                product<4, kTokens, kTiles>(m, x, block + first, tile, out, ahead);
            else
                product<8, kTokens, kTiles>(m, x, block + first, tile, out, ahead);
        });
}

// Few tokens are bound by memory: the more runs are read at a time, the faster weights come. Of one token the processor fetches ahead of
// each run by itself, faster than by asking; of more it has to be asked. Returns the first tile that is left.
template <int kTokens>
int product_wide(const Matrix& m, const Activations& x, int tile, int tile_end, const Output& out, const std::uint8_t* then) {
    constexpr int kTiles = tiles_side_by_side(kTokens);
    for (; tile + kTiles <= tile_end; tile += kTiles) {
        const std::ptrdiff_t ahead = asks_ahead(kTokens) ? distance_ahead(m, tile, kTiles, tile_end, then) : 0;
        product<8, kTokens, kTiles>(m, x, 0, tile, out, ahead);
    }
    return tile;
}

void matmul_by_dots(const Matrix& m, const Activations& x, int num_tokens, int tile_begin, int tile_end, const Output& out,
                    const std::uint8_t* then) {
    int tile = tile_begin;
    if (num_tokens <= kDotTokens && m.bits == 8)
        in_pieces<kDotTokens>(num_tokens, 0, [&]<int kTokens>(int) { tile = product_wide<kTokens>(m, x, tile, tile_end, out, then); });
    for (; tile + 2 <= tile_end; tile += 2)
        product_tiles<2>(m, x, num_tokens, tile, out, distance_ahead(m, tile, 2, tile_end, then));
    if (tile < tile_end) product_tiles<1>(m, x, num_tokens, tile, out, 0);
}
