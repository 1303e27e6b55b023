// The choice between tiles and dot products. Included inside the namespace of one instruction set, after both.

// From so many tokens on tiles are faster (measured): as many as dot products take at a time, and one more.
constexpr int kFewestTileTokens = kDotTokens + 1;

template <int kTokens>
void matmul_rows(const Matrix& m, const Activations& x, int num_tokens, int tile_begin, int tile_end, const Output& out,
                 const std::uint8_t* then) {
    if (m.bits == 4)
        matmul_blocks4<kTokens>(m, x, num_tokens, tile_begin, tile_end, out, then);
    else
        matmul_blocks<kTokens>(m, x, num_tokens, tile_begin, tile_end, out, then);
}

// Tokens are cut in blocks of equal, even size, at most 16.
void matmul(const Matrix& m, const Activations& x, int num_tokens, int tile_begin, int tile_end, const Output& out,
            const std::uint8_t* then) {
    if (num_tokens < kFewestTileTokens) return matmul_by_dots(m, x, num_tokens, tile_begin, tile_end, out, then);
    constexpr decltype(&matmul_by_dots) kByRows[] = {matmul_rows<10>, matmul_rows<12>, matmul_rows<14>, matmul_rows<16>};
    const int num_blocks = (num_tokens + kBlock - 1) / kBlock;
    const int rows = (num_tokens + num_blocks - 1) / num_blocks;
    static_assert(kFewestTileTokens == 9, "the table begins with ten rows");
    kByRows[(rows - 9) / 2](m, x, num_tokens, tile_begin, tile_end, out, then);
}
