// Attention of a block of query heads that share keys and values. Included inside the namespace of one instruction set.
//
// What a query gets depends on nothing but its own keys in the order of their positions:
//   scores    one chain of fused multiply-adds over the dimensions, for each key by itself
//   maximum   exact in any order
//   weights   exp of each score by itself; their sum has lane = position % 16, ascending
//   output    for each dimension one chain of fused multiply-adds over ascending positions, then one product with 1 / sum
// Keys and values are `Number`s: float, or bfloat16 as the upper half of one, which is widened and then goes the same way.
// So neither the tree around a node, nor where prefix and scratch meet, nor the other queries of the block show in it.
// Of a window the rows before `first_row` are left out; what lies between it and a query's own window gets the weight 0, which
// changes no bit of sums that begin with 0.

// Keys and values lie apart for each head, so what is read next is asked for in time: a processor's own prefetching ends with each page
// and begins anew with each head. The values are asked for behind the last keys.
inline constexpr std::size_t kAskAhead = 8192, kLine = 64;  // bytes

// What is read `kAskAhead` bytes after these of `key_bytes` bytes of keys.
inline const char* read_later(const AttentionBlock& block, std::size_t bytes_before, std::size_t key_bytes) {
    const std::size_t at = bytes_before + kAskAhead;
    if (at < key_bytes) return static_cast<const char*>(block.keys) + at;
    return static_cast<const char*>(block.values) + static_cast<std::size_t>(block.first_row) * block.dim * num_bytes_of(block.format) + (at - key_bytes);
}

// scores[query][key] of the rows from `first_row` to `num_keys`, kBlocks blocks of sixteen keys at a time; `packed` is [dim][kCount].
template <int kCount, int kBlocks, typename Number>
[[gnu::noinline]] void score_keys(const AttentionBlock& block, const float* packed, float* scores, std::size_t stride, int num_keys) {
    const std::size_t block_size = block.dim * kLanes;
    const std::size_t num_blocks = round_up(num_keys, 2 * kLanes) / kLanes;  // regions hold whole pairs
    const std::size_t block_bytes = block_size * sizeof(Number);
    for (std::size_t first = static_cast<std::size_t>(block.first_row) / kLanes; first < num_blocks; first += kBlocks) {
        const Number* keys = static_cast<const Number*>(block.keys) + first * block_size;
        const char* later = read_later(block, first * block_bytes, num_blocks * block_bytes);
        Floats sums[kCount][kBlocks];
        FW_UNROLL
        for (int q = 0; q < kCount; ++q)
            FW_UNROLL
            for (int i = 0; i < kBlocks; ++i) sums[q][i] = splat(0.0f);
        FW_KEEP_LOOP
        for (std::size_t d = 0; d < block.dim; ++d) {
            constexpr std::size_t kBytes = kBlocks * kLanes * sizeof(Number);  // of keys, each round
            if (kBytes >= kLine || d % 2 == 0)
                FW_UNROLL
                for (std::size_t byte = 0; byte < kBytes; byte += kLine) prefetch(later + d * kBytes + byte);
            Floats key[kBlocks];
            FW_UNROLL
            for (int i = 0; i < kBlocks; ++i) key[i] = load_mixed(keys + i * block_size + d * kLanes);
            FW_UNROLL
            for (int q = 0; q < kCount; ++q) {
                const Floats x = splat(packed[d * kCount + q]);
                FW_UNROLL
                for (int i = 0; i < kBlocks; ++i) sums[q][i] = fma(x, key[i], sums[q][i]);
            }
        }
        FW_UNROLL
        for (int q = 0; q < kCount; ++q)
            FW_UNROLL
            for (int i = 0; i < kBlocks; ++i) store(scores + q * stride + (first + i) * kLanes, in_order<Number>(sums[q][i]));
    }
}

template <int kCount, typename Number>
void score_queries(const AttentionBlock& block, int first, int num_keys, float* packed, float* scores, std::size_t stride) {
    for (std::size_t d = 0; d < block.dim; ++d)
        FW_UNROLL
        for (int q = 0; q < kCount; ++q) packed[d * kCount + q] = block.queries[first + q][d];
    score_keys<kCount, key_blocks(kCount), Number>(block, packed, scores + first * stride, stride, num_keys);
}

// Puts the scores of a query's own branch, which lie by row, in the order of their positions, from `first`. Rows are never before
// their position and ascend, so this can be done in place.
inline void order_by_position(float* scores, int first, int chain, int length, const std::int32_t* tail) {
    for (int position = chain > first ? chain : first; position < length; ++position) scores[position] = scores[tail[position - chain]];
}

// Scores from `first` become weights e^(score - maximum), zero before `begin` and from `length` to the end of its block; returns their sum.
inline float weigh(float* scores, int first, int begin, int length) {
    const int padded = static_cast<int>(round_up(length, kLanes));
    for (int i = first; i < begin; ++i) scores[i] = -__builtin_inff();
    for (int i = length; i < padded; ++i) scores[i] = -__builtin_inff();
    Floats most = load(scores + first);
    for (int i = first + kLanes; i < padded; i += kLanes) most = max(most, load(scores + i));
    const Floats maximum = splat(largest(most));
    Floats total = splat(0.0f);
    for (int i = first; i < padded; i += kLanes) {
        const Floats weight = exp(load(scores + i) - maximum);
        store(scores + i, weight);
        total = total + weight;
    }
    return sum(total);
}

// Adds the weighted values of positions [begin, end) to kCount outputs, kVectors * 16 dimensions from `dim_begin`.
// `rows` names the rows of those positions; null where each is its own row.
template <int kCount, int kVectors, typename Number>
[[gnu::noinline]] void add_values(const AttentionBlock& block, int first, std::size_t dim_begin, const float* weights, std::size_t stride,
                                  int begin, int end, const std::int32_t* rows) {
    Floats sums[kCount][kVectors];
    FW_UNROLL
    for (int q = 0; q < kCount; ++q)
        FW_UNROLL
        for (int i = 0; i < kVectors; ++i)
            sums[q][i] = begin == block.first_row ? splat(0.0f) : mixed<Number>(load(block.outputs[first + q] + dim_begin + i * kLanes));
    const int ahead = rows ? end : static_cast<int>(kAskAhead / (block.dim * sizeof(Number)));
    FW_KEEP_LOOP
    for (int position = begin; position < end; ++position) {
        const std::size_t row = rows ? rows[position - begin] : position;
        const Number* value = static_cast<const Number*>(block.values) + row * block.dim + dim_begin;
        if (position + ahead < end) {
            constexpr std::size_t kBytes = kVectors * kLanes * sizeof(Number);
            FW_UNROLL
            for (std::size_t byte = 0; byte < kBytes; byte += kLine) prefetch(reinterpret_cast<const char*>(value) + kAskAhead + byte);
        }
        Floats part[kVectors];
        FW_UNROLL
        for (int i = 0; i < kVectors; ++i) part[i] = load_mixed(value + i * kLanes);
        FW_UNROLL
        for (int q = 0; q < kCount; ++q) {
            const Floats weight = splat(weights[q * stride + position]);
            FW_UNROLL
            for (int i = 0; i < kVectors; ++i) sums[q][i] = fma(weight, part[i], sums[q][i]);
        }
    }
    FW_UNROLL
    for (int q = 0; q < kCount; ++q)
        FW_UNROLL
        for (int i = 0; i < kVectors; ++i) store(block.outputs[first + q] + dim_begin + i * kLanes, in_order<Number>(sums[q][i]));
}

template <int kCount, typename Number>
void add_values_all_dims(const AttentionBlock& block, int first, const float* weights, std::size_t stride, int begin,
                         int end, const std::int32_t* rows) {
    constexpr int kVectors = value_vectors(kCount), kStep = kVectors * kLanes;
    std::size_t d = 0;
    for (; d + kStep <= block.dim; d += kStep)
        add_values<kCount, kVectors, Number>(block, first, d, weights, stride, begin, end, rows);
    for (; d < block.dim; d += kLanes) add_values<kCount, 1, Number>(block, first, d, weights, stride, begin, end, rows);
}

// Outputs of queries [first, first + kCount): the positions all of them share together, then each one's own.
template <int kCount, typename Number>
void value_queries(const AttentionBlock& block, int first, const float* weights, std::size_t stride) {
    int shared = block.chains[first];
    for (int q = 1; q < kCount; ++q)
        if (block.chains[first + q] < shared) shared = block.chains[first + q];
    if (shared < block.first_row) shared = block.first_row;
    add_values_all_dims<kCount, Number>(block, first, weights + first * stride, stride, block.first_row, shared, nullptr);
    for (int q = first; q < first + kCount; ++q) {
        const float* own = weights + q * stride;
        const int chain = block.chains[q], begin = chain > shared ? chain : shared;  // of its own branch
        if (shared < chain) add_values_all_dims<1, Number>(block, q, own, stride, shared, chain, nullptr);
        if (begin < block.lengths[q])
            add_values_all_dims<1, Number>(block, q, own, stride, begin, block.lengths[q], block.tails[q] + (begin - chain));
    }
}

// Calls step.template operator()<count>(first) over [0, total) in pieces of at most kMost.
template <int kMost, typename Step>
inline void in_pieces(int total, int first, const Step& step) {
    while (total - first >= kMost) {
        step.template operator()<kMost>(first);
        first += kMost;
    }
    if constexpr (kMost > 1)
        if (first < total) in_pieces<kMost - 1>(total, first, step);
}

// As few pieces of at most kMost as there can be, of about equal size: one token alone costs a sweep half of what four do.
template <int kMost, typename Step>
inline void in_even_pieces(int total, const Step& step) {
    for (int first = 0, left = (total + kMost - 1) / kMost; left > 0; --left) {
        const int size = (total - first + left - 1) / left;
        in_pieces<kMost>(first + size, first, step);
        first += size;
    }
}

template <typename Number>
void attend_to(const AttentionBlock& block) {
    const std::size_t stride = round_up(block.num_rows, 2 * kLanes);
    float* packed = block.scratch;
    float* scores = packed + kMaxQueries * block.dim;
    int num_keys = 0;  // rows whose scores some query needs: all of them where there are branches
    for (int q = 0; q < block.num_queries; ++q) {
        const int needed = block.chains[q] < block.lengths[q] ? block.num_rows : block.lengths[q];
        num_keys = needed > num_keys ? needed : num_keys;
    }
    in_pieces<kScoreQueries>(block.num_queries, 0, [&]<int kCount>(int first) {
        score_queries<kCount, Number>(block, first, num_keys, packed, scores, stride);
    });
    float inverses[kMaxQueries];
    for (int q = 0; q < block.num_queries; ++q) {
        float* own = scores + q * stride;
        order_by_position(own, block.first_row, block.chains[q], block.lengths[q], block.tails[q]);
        if (block.score_cap > 0.0f) soft_cap(own + block.first_row, round_up(block.lengths[q] - block.first_row, kLanes), block.score_cap);
        inverses[q] = 1.0f / weigh(own, block.first_row, block.begins[q], block.lengths[q]);
    }
    in_pieces<kValueQueries>(block.num_queries, 0,
                             [&]<int kCount>(int first) { value_queries<kCount, Number>(block, first, scores, stride); });
    for (int q = 0; q < block.num_queries; ++q)
        for (std::size_t d = 0; d < block.dim; d += kLanes)
            store(block.outputs[q] + d, load(block.outputs[q] + d) * splat(inverses[q]));
}

void attend(const AttentionBlock& block) {
    if (block.format == KvFormat::kBfloat16)
        attend_to<std::uint16_t>(block);
    else
        attend_to<float>(block);
}
