// Whole passes of a small decoder: every path that runs here, on 1 to 16 threads, against the portable one on one thread. Chains of
// several widths, a tree beside another request, a commit out of order; hashed are the logits and all keys and values.
// Prints the paths and a hash of the portable results: it is the same on every processor. Fails with a message and status 1.
#include <cstdio>
#include <cmath>
#include <random>
#include <vector>

#include "cpu.hpp"
#include "decoder.hpp"
#include "pack.hpp"

namespace fw {
namespace {

constexpr int kVocab = 203, kHidden = 80, kInner = 144, kLayers = 2, kHeads = 6, kKvHeads = 2, kHeadDim = 24;
constexpr int kThreads[] = {1, 2, 3, 4, 8, 16};

std::mt19937 random_bits(11);

// Uniform in [-1, 1), the same numbers with every library.
float next_float() { return static_cast<float>(static_cast<std::int32_t>(random_bits())) * 0x1p-31f; }

class Hash {
public:
    void add(const std::vector<float>& values) {
        const unsigned char* bytes = reinterpret_cast<const unsigned char*>(values.data());
        for (std::size_t i = 0; i < values.size() * sizeof(float); ++i) value_ = (value_ ^ bytes[i]) * 1099511628211u;  // FNV-1a
    }
    std::uint64_t value() const { return value_; }

private:
    std::uint64_t value_ = 14695981039346656037u;
};

// A packed matrix with its memory; rows and columns beyond the real ones are zero, as in files.
struct Packed {
    std::vector<std::uint8_t> tiles;
    std::vector<float> scales;
    std::vector<std::uint16_t> half_scales;
    Matrix matrix;

    Packed(std::size_t outputs, std::size_t inputs, std::size_t real_inputs, int bits)
        : tiles(outputs * inputs * bits / 8), scales(outputs), half_scales(outputs * inputs / kSubgroup * 2) {
        std::vector<float> weights(outputs * inputs);
        for (std::size_t i = 0; i < weights.size(); ++i) weights[i] = i % inputs < real_inputs ? next_float() / 4 : 0.0f;
        if (bits == 8)
            pack_int8(weights.data(), outputs, inputs, tiles.data(), scales.data());
        else
            pack_int4(weights.data(), outputs, inputs, tiles.data(), half_scales.data());
        matrix = {tiles.data(), scales.data(), half_scales.data(), nullptr, inputs, static_cast<int>(outputs / kLanes), bits};
    }
};

struct Model {
    Shape shape;
    std::vector<Packed> matrices;
    std::vector<float> norm;
    std::vector<std::uint16_t> embedding;

    explicit Model(int bits) {
        shape.hidden = kHidden;
        shape.intermediate = kInner;
        shape.num_layers = kLayers;
        shape.num_heads = kHeads;
        shape.num_kv_heads = kKvHeads;
        shape.head_dim = kHeadDim;
        shape.vocab = kVocab;
        for (int i = 0; i < kHeadDim / 2; ++i) shape.ropes[0].inverse_frequencies.push_back(1.0f / static_cast<float>(1 << i));
        norm.assign(shape.hidden_width(), 0.0f);
        for (int i = 0; i < kHidden; ++i) norm[static_cast<std::size_t>(i)] = 1.0f + next_float() / 2;
        for (int i = 0; i < kVocab * kHidden; ++i) embedding.push_back(static_cast<std::uint16_t>(0x3F00 + (random_bits() & 0x807F)));
        for (int layer = 0; layer < kLayers; ++layer) {
            matrices.emplace_back(shape.qkv_width(), shape.hidden_width(), kHidden, bits);
            matrices.emplace_back(shape.hidden_width(), shape.attention_width(), shape.num_heads * shape.dim(), bits);
            matrices.emplace_back(2 * shape.intermediate_width(), shape.hidden_width(), kHidden, bits);
            matrices.emplace_back(shape.hidden_width(), shape.intermediate_width(), kInner, bits);
        }
        matrices.emplace_back(round_up(kVocab, kLanes), shape.hidden_width(), kHidden, 8);
    }

    Weights weights() const {
        Weights out;
        for (std::size_t i = 0; i + 4 < matrices.size(); i += 4)
            out.layers.push_back({{norm}, {norm}, {}, {}, matrices[i].matrix, matrices[i + 1].matrix, matrices[i + 2].matrix, matrices[i + 3].matrix});
        out.embedding = embedding;
        out.final_norm = {norm};
        out.head = matrices.back().matrix;
        return out;
    }
};

// The trees of several requests, one after the other; parents count from each tree's own root.
struct Batch {
    std::vector<std::int32_t> ids, parents, positions, starts{0}, kv_lens, slots;

    void add(KvCache& cache, int slot, const std::vector<int>& tree) {
        const std::int32_t first = starts.back(), kv_len = static_cast<std::int32_t>(cache.length(slot));
        for (std::size_t i = 0; i < tree.size(); ++i) {
            ids.push_back(static_cast<std::int32_t>((7919 * (static_cast<std::size_t>(kv_len) + i) + 13 * static_cast<std::size_t>(slot)) % kVocab));
            parents.push_back(tree[i] < 0 ? -1 : first + tree[i]);
            positions.push_back(tree[i] < 0 ? kv_len : positions[static_cast<std::size_t>(first + tree[i])] + 1);
        }
        starts.push_back(static_cast<std::int32_t>(ids.size()));
        kv_lens.push_back(kv_len);
        slots.push_back(slot);
    }
};

std::vector<int> chain(int length) {
    std::vector<int> parents;
    for (int i = 0; i < length; ++i) parents.push_back(i - 1);
    return parents;
}

void run(Decoder& decoder, KvCache& cache, const Batch& batch, Hash& hash) {
    std::vector<std::int32_t> nodes(batch.ids.size());
    for (std::size_t i = 0; i < nodes.size(); ++i) nodes[i] = static_cast<std::int32_t>(i);
    std::vector<float> logits(nodes.size() * kVocab), hidden(nodes.size() * kHidden);
    Pass pass;
    pass.token_ids = batch.ids;
    pass.parents = batch.parents;
    pass.positions = batch.positions;
    pass.starts = batch.starts;
    pass.kv_lens = batch.kv_lens;
    pass.slots = batch.slots;
    pass.logit_nodes = nodes;
    pass.logits = logits.data();
    pass.hidden = hidden.data();
    decoder.forward(cache, pass);
    hash.add(logits);
    hash.add(hidden);
    for (const float x : logits)
        if (!std::isfinite(x)) throw std::runtime_error("a logit is not finite");
}

void run_one(Decoder& decoder, KvCache& cache, int slot, int length, Hash& hash) {
    Batch batch;
    batch.add(cache, slot, chain(length));
    run(decoder, cache, batch, hash);
}

std::uint64_t hash_of_passes(const Model& model, KvFormat format, const Kernels& kernels, int num_threads) {
    Decoder decoder(model.shape, model.weights(), {}, std::make_shared<ThreadPool>(num_threads, num_threads), kernels);
    KvCache cache(kLayers, kKvHeads, kHeadDim, format);
    const int one = cache.open(96), other = cache.open(96);
    Hash hash;
    for (const auto& [slot, length] : {std::pair{one, 37}, std::pair{other, 5}}) {
        run_one(decoder, cache, slot, length, hash);
        std::vector<std::int64_t> path;
        for (int i = 0; i < length; ++i) path.push_back(i);
        cache.commit(slot, path);
    }
    for (const int width : {1, 2, 3, 4, 8, 17, 33}) run_one(decoder, cache, one, width, hash);
    Batch batch;
    batch.add(cache, one, {-1, 0, 0, 1, 2, 4, 1, 5});
    batch.add(cache, other, chain(3));
    run(decoder, cache, batch, hash);
    cache.commit(one, {0, 2, 4, 5});
    cache.commit(other, {0});
    run_one(decoder, cache, one, 2, hash);
    for (const int slot : {one, other}) {
        const std::size_t rows = static_cast<std::size_t>(cache.length(slot)) * kLayers * kKvHeads * kHeadDim;
        std::vector<float> keys(rows), values(rows);
        cache.copy_out(slot, keys.data(), values.data());
        hash.add(keys);
        hash.add(values);
    }
    return hash.value();
}

bool check(std::uint64_t& hash_of_all) {
    bool good = true;
    for (const int bits : {8, 4}) {
        const Model model(bits);
        for (const KvFormat format : {KvFormat::kFloat32, KvFormat::kBfloat16}) {
            const std::uint64_t expected = hash_of_passes(model, format, *kPortableKernels, 1);
            hash_of_all = (hash_of_all ^ expected) * 1099511628211u;
            for (const Kernels* kernels : available_kernels())
                for (const int num_threads : kThreads)
                    if (hash_of_passes(model, format, *kernels, num_threads) != expected) {
                        std::printf("%s: int%d passes on %d threads differ from the portable path's on one\n", kernels->name, bits, num_threads);
                        good = false;
                    }
        }
    }
    return good;
}

}  // namespace
}  // namespace fw

int main() {
    std::uint64_t hash = 14695981039346656037u;
    const bool good = fw::check(hash);
    for (const fw::Kernels* kernels : fw::available_kernels()) std::printf("%s ", kernels->name);
    std::printf("%016llx\n", static_cast<unsigned long long>(hash));
    return good ? 0 : 1;
}
