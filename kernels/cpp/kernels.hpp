// What one instruction set offers: a table of functions on plain pointers, and the small structs they share.
//
// Layouts (rows are padded with zeros to a multiple of kGroup floats, so no kernel has a tail):
//   activations   blocks of kBlock tokens; int8 values token by token, scales and sums [block][group][token in block]
//   weights       tiles of 16 outputs; int8: [tile][input / 4][16 outputs][4 inputs], each value + 128
//   keys          [position / 16][dim][16 positions]: sixteen keys are the lanes of a score
//   values        [position][dim]: the dimensions are the lanes of an output
#pragma once

#include <cstddef>
#include <cstdint>

namespace fw {

inline constexpr int kLanes = 16;       // logical lanes, on every path
inline constexpr int kGroup = 64;       // inputs that share an activation scale
inline constexpr int kSubgroup = 32;    // inputs that share an int4 weight scale
inline constexpr int kBlock = 16;       // tokens of an activation block
inline constexpr std::size_t kStreamBytes = 512;  // parts in which the read bandwidth is measured
inline constexpr int kMaxQueries = 12;  // query heads that one sweep over the keys serves

// Shared by objects built for different processors, so never left as a function of its own.
#define FW_INLINE [[gnu::always_inline]] inline

// Loops over register blocks must be unrolled whole, or their arrays stay in memory; those around them must not, or registers run out.
#if defined(__clang__)
#define FW_UNROLL _Pragma("unroll")
#define FW_KEEP_LOOP _Pragma("nounroll")
#define FW_UNROLL_TWO _Pragma("unroll 2")
#else
#define FW_UNROLL _Pragma("GCC unroll 16")
#define FW_KEEP_LOOP _Pragma("GCC unroll 1")
#define FW_UNROLL_TWO _Pragma("GCC unroll 2")
#endif

FW_INLINE constexpr std::size_t round_up(std::size_t n, std::size_t multiple) { return (n + multiple - 1) / multiple * multiple; }

// Activations of one pass, quantised per token and group: x = scale * value.
struct Activations {
    std::int8_t* values;     // [token][width]
    std::int16_t* pairs;     // the same in 16 bits, of each four inputs 0, 2, 1, 3: written and read by AVX2 alone
    float* scales;           // [block][group][kBlock]
    std::int32_t* sums;      // [block][group][3][kBlock]: of the first half group, the second, and -128 times both
    std::size_t width;       // padded inputs, a multiple of kGroup
    std::size_t num_groups;  // width / kGroup

    FW_INLINE const std::int8_t* row(int token) const { return values + static_cast<std::size_t>(token) * width; }
    FW_INLINE const std::int16_t* pair_row(int token) const { return pairs + static_cast<std::size_t>(token) * width; }
    FW_INLINE std::size_t scale_index(int token, std::size_t group) const {
        return (static_cast<std::size_t>(token / kBlock) * num_groups + group) * kBlock + token % kBlock;
    }
    FW_INLINE std::size_t sum_index(int token, std::size_t group, int which) const {
        return ((static_cast<std::size_t>(token / kBlock) * num_groups + group) * 3 + which) * kBlock + token % kBlock;
    }
};

struct Matrix {
    const std::uint8_t* tiles = nullptr;
    const float* scales = nullptr;              // int8: [tile][16]
    const std::uint16_t* half_scales = nullptr;  // int4: [tile][input / 32][scale, minimum][16], half precision
    const float* bias = nullptr;                // [tile][16] or none
    std::size_t width = 0;                      // padded inputs
    int num_tiles = 0;
    int bits = 8;

    FW_INLINE std::size_t tile_bytes() const { return width * kLanes * static_cast<std::size_t>(bits) / 8; }
};

// Which half of each byte holds the weights of a dot product.
enum class Nibble { kNone, kLow, kHigh };

enum class Into { kSet, kAdd, kSwiglu, kGeglu };

// Of cached keys and values.
enum class KvFormat { kFloat32, kBfloat16 };
FW_INLINE constexpr std::size_t num_bytes_of(KvFormat format) { return format == KvFormat::kFloat32 ? 4 : 2; }

// Where a product goes. kSwiglu: tiles alternate gate, up, gate, up ...; silu(gate) * up is stored at half the column. kGeglu: the same
// with the tanh form of GELU.
struct Output {
    float* rows;
    std::size_t stride;  // floats from one token to the next
    Into into;
    int first_tile;  // whose outputs are column 0
};

// Attention of up to kMaxQueries query heads over the keys and values of one key-value head of one request.
struct AttentionBlock {
    const void* keys;     // see layouts above
    const void* values;
    KvFormat format;      // of both
    std::size_t dim;      // padded head size, a multiple of 16
    int num_queries;
    int num_rows;         // cached rows, scratch included
    const float* queries[kMaxQueries];  // rotated and scaled
    float* outputs[kMaxQueries];
    int lengths[kMaxQueries];           // keys that the query sees: its position + 1
    int chains[kMaxQueries];            // of them, how many leading ones lie in the row of their position
    const std::int32_t* tails[kMaxQueries];  // rows of the others, by position
    int begins[kMaxQueries];            // positions before it are outside the query's window
    int first_row;        // a multiple of 32, at most each of them: rows before it are seen by none, nor read
    float score_cap;      // 0: none
    float* scratch;       // attention_scratch(dim, num_rows) floats
};

FW_INLINE constexpr std::size_t attention_scratch(std::size_t dim, std::size_t num_rows) {
    return kMaxQueries * (dim + round_up(num_rows, 2 * kLanes));
}

// The best token so far of one draw, lane by lane.
struct Best {
    alignas(64) float scores[kLanes];
    alignas(64) std::int32_t ids[kLanes];
};

struct Noise {
    float temperature;
    std::int32_t key_low, key_high;  // halves of the row key
    const std::int32_t* names = nullptr;  // the token of each row, whose noise it is; null: rows are tokens
};

struct Kernels {
    const char* name;
    void (*rms_norm)(const float* x, const float* weight, float eps, std::size_t size, std::size_t padded, float* out);
    // The same after the mean is removed; then adds the bias, if there is one.
    void (*layer_norm)(const float* x, const float* weight, const float* bias, float eps, std::size_t size, std::size_t padded, float* out);
    void (*quantise)(const float* x, const Activations& into, int token);
    void (*matmul)(const Matrix&, const Activations&, int num_tokens, int tile_begin, int tile_end, const Output&,
                   const std::uint8_t* then);  // what this thread reads next; null: nothing known
    // Turns dimension i with i + half, then scales.
    void (*rotate)(float* head, const float* cos, const float* sin, std::size_t half, std::size_t padded, float scale);
    void (*attend)(const AttentionBlock&);
    // x = cap tanh(x / cap); `count` is a multiple of 16.
    void (*soft_cap)(float* x, std::size_t count, float cap);
    // Both look at `count` logits of tokens from `first`; lanes of `best` only ever move to a strictly larger score.
    void (*best_greedy)(const float* logits, std::int32_t first, std::int32_t count, Best& best);
    void (*best_perturbed)(const float* logits, std::int32_t first, std::int32_t count, const Noise&, float lowest,
                           Best& best);
    float (*log_sum_exp)(const float* logits, std::size_t count);
    // weights[i] = e^(scores[i] - largest), their sum in double in a fixed order.
    double (*softmax_weights)(const float* scores, std::size_t count, float largest, float* weights);
    void (*gumbel)(const Noise&, std::int32_t first, std::int32_t count, float* noise, std::int32_t* bits);  // for tests
    // Reads a multiple of kStreamBytes as fast as memory gives it; the result only shows that it did.
    std::uint64_t (*read_stream)(const std::uint8_t* bytes, std::size_t num_bytes);
};

// One table an instruction set, where the build has it (FOREWORD_HAS_...).
extern const Kernels* const kAmxKernels;
extern const Kernels* const kAvx512Kernels;
extern const Kernels* const kAvxVnniKernels;
extern const Kernels* const kAvx2Kernels;
extern const Kernels* const kDotprodKernels;
extern const Kernels* const kPortableKernels;

}  // namespace fw
