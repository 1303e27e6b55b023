// Products with AMX: a tile of up to 16 tokens x 64 inputs times 64 inputs x 16 outputs, exact in int32. A group of
// inputs is one tile of weights, as it lies in memory.

struct alignas(64) TileShapes {
    std::uint8_t palette = 1, start_row = 0, reserved[14] = {};
    std::uint16_t row_bytes[16] = {};
    std::uint8_t rows[16] = {};
};

// GCC's intrinsic says that it reads eight bytes; without the barrier the stores of the others may be left out.
inline void load_shapes(const TileShapes& shapes) {
    __asm__ volatile("" : : "r"(&shapes) : "memory");
    _tile_loadconfig(&shapes);
}

// Tiles 0 to 3: sums of even and odd groups; 4: activations; 5 and 6: weights.
inline void configure_tiles(int num_tokens) {
    TileShapes shapes;
    for (int tile = 0; tile < 7; ++tile) {
        shapes.row_bytes[tile] = 64;
        shapes.rows[tile] = static_cast<std::uint8_t>(tile < 5 ? num_tokens : 16);
    }
    load_shapes(shapes);
}

template <int kTiles>
struct alignas(64) TileSums {
    std::int32_t sums[kTiles][kBlock][kLanes];
};

inline void prefetch_tile(const std::uint8_t* tile) {
    FW_UNROLL
    for (int line = 0; line < 16; ++line) prefetch(tile + line * 64);
}

// Tile registers are part of an instruction's text, so a product is written once as a macro.
#define FW_TILE_PRODUCT(sum_tile, weight_tile, weights, into) \
    _tile_zero(sum_tile);                                     \
    _tile_loadd(weight_tile, weights, 64);                    \
    if (ahead) prefetch_tile((weights) + ahead);              \
    _tile_dpbsud(sum_tile, 4, weight_tile);                   \
    _tile_stored(sum_tile, into, 64)

// Products of one group into memory; kOdd chooses the registers, so that two groups can be under way.
template <int kTiles, bool kOdd>
inline void multiply_group(const std::uint8_t* weights, std::size_t tile_bytes, std::ptrdiff_t ahead, const std::int8_t* x,
                           std::size_t width, TileSums<kTiles>& into) {
    _tile_loadd(4, x, width);
    if constexpr (kOdd) {
        FW_TILE_PRODUCT(2, 5, weights, into.sums[0]);
        if constexpr (kTiles == 2) { FW_TILE_PRODUCT(3, 6, weights + tile_bytes, into.sums[1]); }
    } else {
        FW_TILE_PRODUCT(0, 5, weights, into.sums[0]);
        if constexpr (kTiles == 2) { FW_TILE_PRODUCT(1, 6, weights + tile_bytes, into.sums[1]); }
    }
}

#undef FW_TILE_PRODUCT

template <int kTokens, int kTiles>
inline void add_group(const TileSums<kTiles>& products, const Activations& x, int token, std::size_t group,
                      Floats (&totals)[kTokens][kTiles]) {
    FW_UNROLL
    for (int t = 0; t < kTokens; ++t) {
        const Ints start = splat(x.sums[x.sum_index(token + t, group, 2)]);
        const Floats scale = splat(x.scales[x.scale_index(token + t, group)]);
        FW_UNROLL
        for (int j = 0; j < kTiles; ++j)
            totals[t][j] = fma(to_floats(load(products.sums[j][t]) + start), scale, totals[t][j]);
    }
}

// Tokens [token, token + num_tokens), num_tokens <= kTokens, against kTiles tiles; rows beyond are computed and dropped.
// While the tile unit works on a group, the vector units add the one before.
template <int kTokens, int kTiles>
void product_amx(const Matrix& m, const Activations& x, int token, int num_tokens, int tile, const Output& out,
                 std::ptrdiff_t ahead) {
    Floats totals[kTokens][kTiles];
    FW_UNROLL
    for (int t = 0; t < kTokens; ++t) {
        FW_UNROLL
        for (int j = 0; j < kTiles; ++j) totals[t][j] = splat(0.0f);
    }
    const std::uint8_t* weights = m.tiles + tile * m.tile_bytes();
    const std::int8_t* row = x.row(token);
    TileSums<kTiles> even, odd;
    const auto multiply = [&]<bool kOdd>(std::size_t group, TileSums<kTiles>& into) {
        multiply_group<kTiles, kOdd>(weights + group * kGroup * kLanes, m.tile_bytes(), ahead, row + group * kGroup, x.width, into);
    };
    multiply.template operator()<false>(0, even);
    for (std::size_t group = 1; group < x.num_groups; group += 2) {
        multiply.template operator()<true>(group, odd);
        add_group<kTokens, kTiles>(even, x, token, group - 1, totals);
        if (group + 1 < x.num_groups) multiply.template operator()<false>(group + 1, even);
        add_group<kTokens, kTiles>(odd, x, token, group, totals);
    }
    if (x.num_groups % 2 == 1) add_group<kTokens, kTiles>(even, x, token, x.num_groups - 1, totals);
    finish_tiles<kTokens, kTiles>(m, out, token, tile, totals, num_tokens);
}

// All tokens in blocks of kTokens rows (the last may be shorter), so that weights come from memory once.
template <int kTokens>
void matmul_blocks(const Matrix& m, const Activations& x, int num_tokens, int tile_begin, int tile_end, const Output& out,
                   const std::uint8_t* then) {
    const auto all_tokens = [&]<int kTiles>(int tile) {
        const std::ptrdiff_t ahead = distance_ahead(m, tile, kTiles, tile_end, then);
        for (int token = 0; token < num_tokens; token += kTokens) {
            const int left = num_tokens - token < kTokens ? num_tokens - token : kTokens;
            product_amx<kTokens, kTiles>(m, x, token, left, tile, out, token == 0 ? ahead : 0);
        }
    };
    configure_tiles(kTokens);
    int tile = tile_begin;
    for (; tile + 2 <= tile_end; tile += 2) all_tokens.template operator()<2>(tile);
    if (tile < tile_end) all_tokens.template operator()<1>(tile);
    _tile_release();
}
