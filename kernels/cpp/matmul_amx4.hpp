// int4 products with AMX: the nibbles of a group are spread to bytes in the nearest cache, then each half of the group is a
// tile of 32 inputs. Included inside the namespace of one instruction set, after matmul_amx.hpp.

// Tiles 0 to 3: sums of the halves of even and odd groups; 4: activations; 5: weights.
inline void configure_half_tiles(int num_tokens) {
    TileShapes shapes;
    for (int tile = 0; tile < 4; ++tile) {
        shapes.row_bytes[tile] = 64;
        shapes.rows[tile] = static_cast<std::uint8_t>(num_tokens);
    }
    shapes.row_bytes[4] = kSubgroup;
    shapes.rows[4] = static_cast<std::uint8_t>(num_tokens);
    shapes.row_bytes[5] = 64;
    shapes.rows[5] = kSubgroup / 4;
    load_shapes(shapes);
}

struct alignas(64) SpreadGroup {
    std::uint8_t halves[2][kSubgroup * kLanes];
};

inline void spread_nibbles(const std::uint8_t* packed, std::ptrdiff_t ahead, SpreadGroup& into) {
    FW_UNROLL
    for (int line = 0; line < 8; ++line) {
        if (ahead) prefetch(packed + line * 64 + ahead);
        _mm512_store_si512(into.halves[0] + line * 64, load_weights<Nibble::kLow>(packed + line * 64));
        _mm512_store_si512(into.halves[1] + line * 64, load_weights<Nibble::kHigh>(packed + line * 64));
    }
}

#define FW_HALF_PRODUCT(sum_tile, half)              \
    _tile_zero(sum_tile);                            \
    _tile_loadd(4, x + (half) * kSubgroup, width);   \
    _tile_loadd(5, spread.halves[half], 64);         \
    _tile_dpbsud(sum_tile, 4, 5);                    \
    _tile_stored(sum_tile, into.sums[half], 64)

template <bool kOdd>
inline void multiply_halves(const SpreadGroup& spread, const std::int8_t* x, std::size_t width, TileSums<2>& into) {
    if constexpr (kOdd) {
        FW_HALF_PRODUCT(2, 0);
        FW_HALF_PRODUCT(3, 1);
    } else {
        FW_HALF_PRODUCT(0, 0);
        FW_HALF_PRODUCT(1, 1);
    }
}

#undef FW_HALF_PRODUCT

template <int kTokens>
inline void add_halves(const TileSums<2>& products, const Matrix& m, const Activations& x, int token, int tile,
                       std::size_t group, Floats (&totals)[kTokens]) {
    for (int half = 0; half < 2; ++half) {
        const std::size_t subgroup = tile * 2 * x.num_groups + 2 * group + half;
        const Floats scale = load_halves(m.half_scales + subgroup * 2 * kLanes);
        const Floats minimum = load_halves(m.half_scales + subgroup * 2 * kLanes + kLanes);
        FW_UNROLL
        for (int t = 0; t < kTokens; ++t) {
            const Floats sum_x = to_floats(splat(x.sums[x.sum_index(token + t, group, half)]));
            const Floats part = fma(minimum, sum_x, to_floats(load(products.sums[half][t])) * scale);
            totals[t] = fma(part, splat(x.scales[x.scale_index(token + t, group)]), totals[t]);
        }
    }
}

template <int kTokens>
inline void product_amx4(const Matrix& m, const Activations& x, int token, int tile, std::ptrdiff_t ahead,
                         Floats (&totals)[kTokens]) {
    FW_UNROLL
    for (int t = 0; t < kTokens; ++t) totals[t] = splat(0.0f);
    const std::uint8_t* weights = m.tiles + tile * m.tile_bytes();
    const std::int8_t* row = x.row(token);
    SpreadGroup spread[2];
    TileSums<2> even, odd;
    const auto spread_group = [&](std::size_t group) {
        if (group < x.num_groups) spread_nibbles(weights + group * (kGroup * kLanes / 2), ahead, spread[group % 2]);
    };
    // Bytes are spread one group before the tile unit reads them, and added one group after it is done.
    const auto multiply = [&]<bool kOdd>(std::size_t group, TileSums<2>& into) {
        spread_group(group + 1);
        multiply_halves<kOdd>(spread[kOdd], row + group * kGroup, x.width, into);
    };
    spread_group(0);
    multiply.template operator()<false>(0, even);
    for (std::size_t group = 1; group < x.num_groups; group += 2) {
        multiply.template operator()<true>(group, odd);
        add_halves<kTokens>(even, m, x, token, tile, group - 1, totals);
        if (group + 1 < x.num_groups) multiply.template operator()<false>(group + 1, even);
        add_halves<kTokens>(odd, m, x, token, tile, group, totals);
    }
    if (x.num_groups % 2 == 1) add_halves<kTokens>(even, m, x, token, tile, x.num_groups - 1, totals);
}

template <int kTokens>
void matmul_blocks4(const Matrix& m, const Activations& x, int num_tokens, int tile_begin, int tile_end, const Output& out,
                    const std::uint8_t* then) {
    configure_half_tiles(kTokens);
    for (int tile = tile_begin; tile < tile_end; tile += 2) {
        const bool is_pair = tile + 2 <= tile_end;
        const std::ptrdiff_t far = is_pair ? distance_ahead(m, tile, 2, tile_end, then) : 0;
        for (int token = 0; token < num_tokens; token += kTokens) {
            const int left = num_tokens - token < kTokens ? num_tokens - token : kTokens;
            const std::ptrdiff_t ahead = token == 0 ? far : 0;
            Floats one[kTokens], pair[kTokens][2];
            product_amx4<kTokens>(m, x, token, tile, ahead, one);
            if (!is_pair) {
                Floats single[kTokens][1];
                for (int t = 0; t < kTokens; ++t) single[t][0] = one[t];
                finish_tiles<kTokens, 1>(m, out, token, tile, single, left);
                continue;
            }
            for (int t = 0; t < kTokens; ++t) pair[t][0] = one[t];
            product_amx4<kTokens>(m, x, token, tile + 1, ahead, one);
            for (int t = 0; t < kTokens; ++t) pair[t][1] = one[t];
            finish_tiles<kTokens, 2>(m, out, token, tile, pair, left);
        }
    }
    _tile_release();
}
