// Every path that runs here against the portable one, bit by bit; and draws from whole rows, which must take no memory.
// Prints a hash of the portable results: it is the same on every processor. Fails with a message and status 1.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <new>
#include <random>
#include <vector>

#include "cpu.hpp"
#include "pack.hpp"
#include "truncate.hpp"

namespace {

std::size_t num_allocations = 0;

}  // namespace

void* operator new(std::size_t num_bytes) {
    ++num_allocations;
    if (void* memory = std::malloc(num_bytes)) return memory;
    throw std::bad_alloc();
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }

namespace fw {
namespace {

constexpr int kTiles = 5;
constexpr std::size_t kWidth = 192, kOutputs = kTiles * kLanes, kVocab = 1003;
constexpr int kMostTokens = 19;

std::mt19937 random_bits(7);

// Uniform in [-1, 1), the same numbers with every library.
float next_float() { return static_cast<float>(static_cast<std::int32_t>(random_bits())) * 0x1p-31f; }

std::vector<float> random_floats(std::size_t count) {
    std::vector<float> values(count);
    for (float& value : values) value = next_float();
    return values;
}

struct Packed {
    std::vector<std::uint8_t> tiles;
    std::vector<float> scales, bias = random_floats(kOutputs);
    std::vector<std::uint16_t> half_scales;
    Matrix matrix;

    explicit Packed(int bits) : tiles(kOutputs * kWidth * bits / 8), scales(kOutputs), half_scales(kOutputs * kWidth / kSubgroup * 2) {
        const std::vector<float> weights = random_floats(kOutputs * kWidth);
        if (bits == 8)
            pack_int8(weights.data(), kOutputs, kWidth, tiles.data(), scales.data());
        else
            pack_int4(weights.data(), kOutputs, kWidth, tiles.data(), half_scales.data());
        matrix = {tiles.data(), scales.data(), half_scales.data(), bias.data(), kWidth, kTiles, bits};
    }
};

// Products of `num_tokens` rows, quantised by the same path.
std::vector<float> products(const Kernels& kernels, const Matrix& matrix, const std::vector<float>& inputs, int num_tokens, Into into = Into::kSet) {
    const std::size_t rows = round_up(kMostTokens, kBlock) + kBlock, groups = kWidth / kGroup;
    std::vector<std::int8_t> values(rows * kWidth);
    std::vector<std::int16_t> pairs(rows * kWidth);
    std::vector<float> scales(rows * groups), outputs(static_cast<std::size_t>(num_tokens) * kOutputs);
    std::vector<std::int32_t> sums(rows * groups * 3);
    const Activations x{values.data(), pairs.data(), scales.data(), sums.data(), kWidth, groups};
    for (int token = 0; token < num_tokens; ++token) kernels.quantise(inputs.data() + token * kWidth, x, token);
    kernels.matmul(matrix, x, num_tokens, 0, kTiles / 2 * 2, {outputs.data(), kOutputs, into, 0}, nullptr);
    if (into == Into::kSet) kernels.matmul(matrix, x, num_tokens, kTiles / 2 * 2, kTiles, {outputs.data(), kOutputs, into, 0}, nullptr);
    return outputs;
}

// Queries that see the first keys in order and one more out of order. `memory` holds keys, values and queries; keys and values are
// taken as they are, or by their upper halves.
// With a window they see a few of the last keys, under a cap.
std::vector<float> attended(const Kernels& kernels, std::size_t dim, const std::vector<float>& memory, KvFormat format, bool has_window) {
    constexpr int kRows = 45, kLength = 38;
    const std::size_t held = 48 * dim;
    std::vector<float> outputs(kMaxQueries * dim), scratch(attention_scratch(dim, kRows));
    const std::int32_t tail[] = {kRows - 1};
    std::vector<std::uint16_t> halves(2 * held);
    for (std::size_t i = 0; i < halves.size(); ++i) {
        std::uint32_t bits;
        std::memcpy(&bits, &memory[i], sizeof bits);
        halves[i] = static_cast<std::uint16_t>(bits >> 16);
    }
    const bool is_wide = format == KvFormat::kFloat32;
    AttentionBlock block{};
    block.keys = is_wide ? static_cast<const void*>(memory.data()) : halves.data();
    block.values = is_wide ? static_cast<const void*>(memory.data() + held) : halves.data() + held;
    block.format = format;
    block.dim = dim;
    block.num_queries = kMaxQueries;
    block.num_rows = kRows;
    block.scratch = scratch.data();
    if (has_window) {
        block.first_row = 2 * kLanes;
        block.score_cap = 1.5f;
    }
    for (int q = 0; q < kMaxQueries; ++q) {
        block.queries[q] = memory.data() + 2 * held + q * dim;
        block.outputs[q] = outputs.data() + q * dim;
        block.lengths[q] = kLength;
        block.chains[q] = kLength - 1;
        block.tails[q] = tail;
        block.begins[q] = has_window ? block.first_row + q % 6 : 0;
    }
    kernels.attend(block);
    return outputs;
}

// A row that is no multiple of the lanes, its mean removed, and soft caps from next to nothing to where they saturate.
std::vector<float> normed_and_capped(const Kernels& kernels, const std::vector<float>& inputs) {
    std::vector<float> row(inputs.begin(), inputs.begin() + kWidth);
    for (std::size_t i = kWidth - 5; i < kWidth; ++i) row[i] = 0.0f;
    kernels.layer_norm(row.data(), inputs.data() + kWidth, inputs.data() + 2 * kWidth, 1e-5f, kWidth - 5, kWidth, row.data());
    for (std::size_t i = 0; i < kWidth; ++i) row.push_back(inputs[i] * (i % 3 == 0 ? 1e-6f : i % 3 == 1 ? 1.0f : 100.0f));
    kernels.soft_cap(row.data() + kWidth, kWidth, 2.5f);
    return row;
}

std::vector<float> noise(const Kernels& kernels) {
    std::vector<float> values(kVocab);
    std::vector<std::int32_t> bits(kVocab);
    kernels.gumbel({1.0f, 12345, -678}, 0, static_cast<std::int32_t>(kVocab), values.data(), bits.data());
    return values;
}

std::uint64_t hash_of_all = 14695981039346656037u;  // FNV-1a

bool same(const Kernels& kernels, const char* what, const std::vector<float>& expected, const std::vector<float>& got) {
    if (&kernels == kPortableKernels)
        for (std::size_t i = 0; i < expected.size() * sizeof(float); ++i)
            hash_of_all = (hash_of_all ^ reinterpret_cast<const unsigned char*>(expected.data())[i]) * 1099511628211u;
    if (std::memcmp(expected.data(), got.data(), expected.size() * sizeof(float)) == 0) return true;
    std::printf("%s: %s differs from the portable path\n", kernels.name, what);
    return false;
}

bool check_paths() {
    const Packed int8(8), int4(4);
    const std::vector<float> inputs = random_floats(kMostTokens * kWidth), memory = random_floats(2 * 48 * 64 + kMaxQueries * 64);
    bool good = true;
    for (const Kernels* kernels : available_kernels()) {
        for (int num_tokens = 1; num_tokens <= kMostTokens; ++num_tokens)
            for (const Packed* packed : {&int8, &int4})
                for (const Into into : {Into::kSet, Into::kSwiglu, Into::kGeglu})
                    good &= same(*kernels, packed == &int8 ? "int8 matmul" : "int4 matmul",
                                 products(*kPortableKernels, packed->matrix, inputs, num_tokens, into),
                                 products(*kernels, packed->matrix, inputs, num_tokens, into));
        for (const KvFormat format : {KvFormat::kFloat32, KvFormat::kBfloat16})
            for (const bool has_window : {false, true})
                for (const std::size_t dim : {16, 64})
                    good &= same(*kernels, format == KvFormat::kFloat32 ? "attention" : "attention to bfloat16",
                                 attended(*kPortableKernels, dim, memory, format, has_window), attended(*kernels, dim, memory, format, has_window));
        good &= same(*kernels, "norm or cap", normed_and_capped(*kPortableKernels, inputs), normed_and_capped(*kernels, inputs));
        good &= same(*kernels, "noise", noise(*kPortableKernels), noise(*kernels));
        std::printf("%s ", kernels->name);
    }
    return good;
}

// A broken model's logits: NaN is not drawn, and where nothing else is left no token is.
bool check_broken_logits() {
    std::vector<float> logits(kVocab, std::numeric_limits<float>::quiet_NaN()), logprobs(kVocab);
    std::vector<std::int32_t> ids(kVocab);
    const DrawSpec draws[] = {{0, 1.0, 0, 0.02, 0.0, 1}, {0, 0.7, 400, 0.9, 0.0, 2}, {0, 1.0, 5, 1.0, 0.0, 3}, {0, 1.0, 0, 1.0, 0.3, 4}};
    bool good = true;
    for (const std::size_t real : {kVocab, std::size_t{700}}) {  // the first: none is
        if (real < kVocab) logits[real] = -3.0f;
        const std::int32_t expected = real < kVocab ? static_cast<std::int32_t>(real) : kNoToken, named = real < kVocab ? expected : 0;
        RowScratch scratch;
        for (const DrawSpec& draw : draws) good &= draw_truncated(*kPortableKernels, logits.data(), kVocab, draw, noise_of(draw, {}), scratch) == expected;
        for (const int count : {1, static_cast<int>(kVocab)}) {
            name_likeliest(*kPortableKernels, logits.data(), kVocab, count, ids.data(), logprobs.data(), scratch);
            good &= ids[0] == named && (real == kVocab || logprobs[0] == 0.0f);
        }
    }
    if (!good) std::printf("draws from NaN are not what they should be\n");
    return good;
}

// Threads of a pass must not throw, so draws live on the memory reserved before.
bool check_allocations() {
    const std::vector<float> logits = random_floats(kVocab);
    const DrawSpec draws[] = {{0, 1.0, 0, 0.9, 0.0, 1}, {0, 0.7, 400, 1.0, 0.0, 2}, {0, 5.0, 1000, 0.999, 0.01, 3}, {0, 1.0, 1, 0.5, 0.0, 4}};
    std::vector<std::int32_t> ids(kVocab);
    std::vector<float> logprobs(kVocab);
    bool good = true;
    for (const DrawSpec& draw : draws) {
        RowScratch scratch;
        scratch.reserve(kVocab);
        const std::size_t before = num_allocations;
        draw_truncated(*kPortableKernels, logits.data(), kVocab, draw, noise_of(draw, {}), scratch);
        for (const int count : {1, 70, static_cast<int>(kVocab)})
            name_likeliest(*kPortableKernels, logits.data(), kVocab, count, ids.data(), logprobs.data(), scratch);
        good &= num_allocations == before;
    }
    if (!good) std::printf("draws take memory that was not reserved\n");
    return good;
}

}  // namespace
}  // namespace fw

int main() {
    const bool paths = fw::check_paths(), allocations = fw::check_allocations(), broken = fw::check_broken_logits();
    std::printf("%016llx\n", static_cast<unsigned long long>(fw::hash_of_all));
    return paths && allocations && broken ? 0 : 1;
}
