// The Python face: foreword_kernels._native.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <optional>
#include <stdexcept>

#include "chain.hpp"
#include "cpu.hpp"
#include "decoder.hpp"
#include "gil.hpp"
#include "pack.hpp"
#include "projection.hpp"
#include "truncate.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace fw {
namespace {

template <typename T, int kDims>
using Array = nb::ndarray<T, nb::ndim<kDims>, nb::c_contig, nb::device::cpu>;
template <typename T>
using Vector = Array<T, 1>;

template <typename T>
std::span<T> span_of(const Vector<T>& array) {
    return {array.data(), array.size()};
}
template <typename AnyArray>
auto data_of(const std::optional<AnyArray>& array) -> decltype(array->data()) {
    return array ? array->data() : nullptr;
}

using Bytes = std::shared_ptr<const WeightBytes>;

// A matrix within packed bytes.
Matrix matrix_at(const Bytes& bytes, std::size_t tiles, std::size_t scales, std::optional<std::size_t> bias, std::size_t width,
                 int num_tiles, int bits) {
    if (width % kGroup != 0 || num_tiles < 0 || (bits != 4 && bits != 8)) throw std::invalid_argument("not the layout of a packed matrix");
    Matrix m;
    m.width = width;
    m.num_tiles = num_tiles;
    m.bits = bits;
    const std::size_t count = static_cast<std::size_t>(num_tiles);
    m.tiles = bytes->at(tiles, count * m.tile_bytes());
    const std::size_t outputs = count * kLanes;
    if (bits == 8)
        m.scales = reinterpret_cast<const float*>(bytes->at(scales, outputs * sizeof(float)));
    else
        m.half_scales = reinterpret_cast<const std::uint16_t*>(bytes->at(scales, outputs * width / kSubgroup * 2 * sizeof(std::uint16_t)));
    if (bias) m.bias = reinterpret_cast<const float*>(bytes->at(*bias, outputs * sizeof(float)));
    return m;
}

// `count` values; none are refused, since an empty span stands for weights that are left out.
template <typename T>
std::span<const T> values_at(const Bytes& bytes, std::size_t offset, std::size_t count) {
    if (count == 0 || count > bytes->size() / sizeof(T) || offset % alignof(T) != 0)
        throw std::invalid_argument(std::to_string(count) + " values at " + std::to_string(offset) + " do not lie in the packed weights");
    return {reinterpret_cast<const T*>(bytes->at(offset, count * sizeof(T))), count};
}

// Weights under construction, with the memory they lie in.
struct WeightsBuilder {
    Weights weights;
    std::vector<Bytes> memory;
};

Norm norm_at(const Bytes& bytes, std::size_t weight, std::size_t size, std::optional<std::size_t> bias) {
    return {values_at<float>(bytes, weight, size), bias ? values_at<float>(bytes, *bias, size) : std::span<const float>()};
}

// Of a layer that is there already: its bytes are kept with it.
void set_norm(WeightsBuilder& self, std::size_t layer, const std::string& name, const Bytes& bytes, std::size_t weight, std::size_t size,
              std::optional<std::size_t> bias) {
    constexpr std::pair<const char*, Norm Layer::*> kNorms[] = {
        {"attn_norm", &Layer::attn_norm}, {"mlp_norm", &Layer::mlp_norm}, {"q_norm", &Layer::q_norm}, {"k_norm", &Layer::k_norm},
        {"hidden_norm", &Layer::hidden_norm}, {"attn_out_norm", &Layer::attn_out_norm}, {"mlp_out_norm", &Layer::mlp_out_norm}};
    for (const auto& [known, member] : kNorms)
        if (name == known) {
            self.weights.layers.at(layer).*member = norm_at(bytes, weight, size, bias);
            self.memory.push_back(bytes);
            return;
        }
    throw std::invalid_argument("a layer has no norm '" + name + "'");
}

void bind_weights(nb::module_& m) {
    nb::class_<WeightBytes>(m, "WeightBytes")
        .def(
            "__init__",
            [](WeightBytes* self, const std::string& path, std::size_t hot_begin, std::size_t hot_end, bool is_shared) {
                new (self) WeightBytes(path, hot_begin, hot_end, is_shared ? Hold::kMapped : Hold::kCopied);
            },
            "path"_a, "hot_begin"_a, "hot_end"_a, "is_shared"_a = false, nb::call_guard<WithoutGil>())
        .def_static(
            "from_memory",
            [](Vector<const std::uint8_t> bytes) { return std::make_shared<WeightBytes>(bytes.data(), bytes.size()); }, "bytes"_a)
        .def_prop_ro("num_bytes", &WeightBytes::size);
    nb::class_<Matrix>(m, "Matrix")
        .def_prop_ro("num_bytes", [](const Matrix& x) {
            const std::size_t outputs = static_cast<std::size_t>(x.num_tiles) * kLanes;
            return static_cast<std::size_t>(x.num_tiles) * x.tile_bytes() + outputs * (x.bits == 8 ? 4 : x.width / kSubgroup * 4) +
                   (x.bias != nullptr ? outputs * 4 : 0);
        });
    m.def("matrix", &matrix_at, "bytes"_a, "tiles"_a, "scales"_a, "bias"_a.none(), "width"_a, "num_tiles"_a, "bits"_a);
    nb::class_<WeightsBuilder>(m, "Weights")
        .def(nb::init<>())
        .def(
            "add_layer",
            [](WeightsBuilder& self, const Bytes& bytes, std::optional<std::size_t> attn_norm, std::optional<std::size_t> mlp_norm,
               std::size_t norm_size, std::optional<std::size_t> q_norm, std::optional<std::size_t> k_norm, std::size_t head_size,
               const Matrix& qkv, const Matrix& o, const Matrix& gate_up, const Matrix& down, std::optional<std::size_t> hidden_norm) {
                const auto norm = [&](std::optional<std::size_t> offset, std::size_t size) {
                    return offset ? values_at<float>(bytes, *offset, size) : std::span<const float>();
                };
                self.weights.layers.push_back({{norm(attn_norm, norm_size)}, {norm(mlp_norm, norm_size)}, {norm(q_norm, head_size)},
                                               {norm(k_norm, head_size)}, qkv, o, gate_up, down, {norm(hidden_norm, norm_size)}});
                self.memory.push_back(bytes);
            },
            "bytes"_a, "attn_norm"_a.none(), "mlp_norm"_a.none(), "norm_size"_a, "q_norm"_a.none(), "k_norm"_a.none(), "head_size"_a,
            "qkv"_a, "o"_a, "gate_up"_a, "down"_a, "hidden_norm"_a.none() = nb::none())
        .def("set_norm", &set_norm, "layer"_a, "name"_a, "bytes"_a, "weight"_a, "size"_a, "bias"_a.none() = nb::none())
        .def(
            "set_attention", [](WeightsBuilder& self, std::size_t layer, int rope, int window) {
                self.weights.layers.at(layer).rope = rope;
                self.weights.layers.at(layer).window = window;
            },
            "layer"_a, "rope"_a, "window"_a)
        .def(
            "set_embedding",
            [](WeightsBuilder& self, const Bytes& bytes, std::size_t offset, std::size_t count) {
                self.weights.embedding = values_at<std::uint16_t>(bytes, offset, count);
                self.memory.push_back(bytes);
            },
            "bytes"_a, "offset"_a, "count"_a)
        .def(
            "set_final_norm",
            [](WeightsBuilder& self, const Bytes& bytes, std::size_t offset, std::size_t count, std::optional<std::size_t> bias) {
                self.weights.final_norm = norm_at(bytes, offset, count, bias);
                self.memory.push_back(bytes);
            },
            "bytes"_a, "offset"_a, "count"_a, "bias"_a.none() = nb::none())
        .def(
            "set_head",
            [](WeightsBuilder& self, const Bytes& bytes, const Matrix& head) {
                self.weights.head = head;
                self.memory.push_back(bytes);
            },
            "bytes"_a, "head"_a);
}

void bind_cache(nb::module_& m) {
    nb::class_<KvCache>(m, "KvCache")
        .def(
            "__init__",
            [](KvCache* self, int num_layers, int num_heads, int head_dim, const std::string& format) {
                if (format != "float32" && format != "bfloat16")
                    throw std::invalid_argument("the format of keys and values is '" + format + "'; allowed: float32, bfloat16");
                new (self) KvCache(num_layers, num_heads, head_dim, format == "bfloat16" ? KvFormat::kBfloat16 : KvFormat::kFloat32);
            },
            "num_layers"_a, "num_heads"_a, "head_dim"_a, "format"_a = "float32")
        .def("open", &KvCache::open, "capacity"_a)
        .def("close", &KvCache::close, "slot"_a)
        .def("reserve", &KvCache::reserve, "slot"_a, "capacity"_a)
        .def("length", &KvCache::length, "slot"_a)
        .def("commit", &KvCache::commit, "slot"_a, "path"_a)
        .def("truncate", &KvCache::truncate, "slot"_a, "length"_a)
        .def("fork", &KvCache::fork, "slot"_a, "length"_a, "capacity"_a)
        .def(
            "copy_out",
            [](KvCache& self, int slot, Array<float, 4> keys, Array<float, 4> values) {
                const std::size_t rows = static_cast<std::size_t>(self.length(slot)) * self.num_layers() * self.num_heads() * self.head_dim();
                if (keys.size() != rows || values.size() != rows) throw std::invalid_argument("the arrays do not fit the committed rows");
                self.copy_out(slot, keys.data(), values.data());
            },
            "slot"_a, "keys"_a, "values"_a)
        .def(
            "save_rows",
            [](KvCache& self, int slot, std::int64_t first, Vector<std::uint8_t> out) {
                const WithoutGil released;
                self.save_rows(slot, first, span_of(out));
            },
            "slot"_a, "first"_a, "out"_a)
        .def(
            "load_rows",
            [](KvCache& self, int slot, Vector<const std::uint8_t> in) {
                const WithoutGil released;
                self.load_rows(slot, span_of(in));
            },
            "slot"_a, "rows"_a)
        .def_prop_ro("num_open", &KvCache::num_open)
        .def_prop_ro("num_bytes", &KvCache::num_bytes);
}

// Draws arrive as columns: (nodes, temperatures, top_ks, top_ps, min_ps, keys).
std::vector<DrawSpec> draws_of(const Vector<const std::int32_t>& nodes, const Vector<const double>& temperatures,
                               const Vector<const std::int32_t>& top_ks, const Vector<const double>& top_ps,
                               const Vector<const double>& min_ps, const Vector<const std::uint64_t>& keys) {
    const std::size_t count = nodes.size();
    if (temperatures.size() != count || top_ks.size() != count || top_ps.size() != count || min_ps.size() != count || keys.size() != count)
        throw std::invalid_argument("the columns of the draws differ in length");
    std::vector<DrawSpec> draws(count);
    for (std::size_t i = 0; i < count; ++i)
        draws[i] = {nodes.data()[i], temperatures.data()[i], top_ks.data()[i], top_ps.data()[i], min_ps.data()[i], keys.data()[i]};
    return draws;
}

void require_size(bool fits, const char* name) {
    if (!fits) throw std::invalid_argument(std::string(name) + " does not fit what the pass asks for");
}

void check_outputs(const Pass& pass, const Shape& shape, std::size_t logits, std::size_t top_ids, std::size_t top_logprobs,
                   std::size_t tapped, std::size_t hidden, std::size_t inputs) {
    const std::size_t nodes = pass.token_ids.size(), size = static_cast<std::size_t>(shape.hidden);
    require_size(pass.choices.size() == pass.draws.size(), "choices");
    require_size(logits == pass.logit_nodes.size() * static_cast<std::size_t>(shape.vocab), "logits");
    require_size(top_ids == pass.top_nodes.size() * static_cast<std::size_t>(pass.top_k), "top_ids");
    require_size(top_logprobs == top_ids, "top_logprobs");
    require_size(tapped == nodes * pass.taps.size() * size, "taps");
    require_size(hidden == 0 || hidden == nodes * size, "hidden");
    require_size(inputs == 0 || inputs == nodes * size, "inputs");
}

using Ints32 = Vector<const std::int32_t>;
using Floats2 = std::optional<Array<float, 2>>;

void forward(Decoder& self, KvCache& cache, Ints32 token_ids, Ints32 parents, Ints32 positions, Ints32 starts, Ints32 kv_lens,
             Ints32 slots, std::optional<Array<const float, 2>> inputs, Ints32 draw_nodes, Vector<const double> temperatures,
             Ints32 top_ks, Vector<const double> top_ps, Vector<const double> min_ps, Vector<const std::uint64_t> keys,
             Ints32 names, Vector<std::int32_t> choices, Ints32 logit_nodes, Floats2 logits, Ints32 top_nodes, int top_k,
             std::optional<Array<std::int32_t, 2>> top_ids, Floats2 top_logprobs, Ints32 taps, std::optional<Array<float, 3>> tapped,
             Floats2 hidden) {
    const std::vector<DrawSpec> draws = draws_of(draw_nodes, temperatures, top_ks, top_ps, min_ps, keys);
    Pass pass;
    pass.token_ids = span_of(token_ids);
    pass.parents = span_of(parents);
    pass.positions = span_of(positions);
    pass.starts = span_of(starts);
    pass.kv_lens = span_of(kv_lens);
    pass.slots = span_of(slots);
    pass.inputs = data_of(inputs);
    pass.draws = draws;
    pass.names = span_of(names);
    pass.choices = span_of(choices);
    pass.logit_nodes = span_of(logit_nodes);
    pass.logits = data_of(logits);
    pass.top_nodes = span_of(top_nodes);
    pass.top_k = top_k;
    pass.top_ids = data_of(top_ids);
    pass.top_logprobs = data_of(top_logprobs);
    pass.taps = span_of(taps);
    pass.tapped = data_of(tapped);
    pass.hidden = data_of(hidden);
    const auto size = [](const auto& array) { return array ? array->size() : 0; };
    check_outputs(pass, self.shape(), size(logits), size(top_ids), size(top_logprobs), size(tapped), size(hidden), size(inputs));
    const WithoutGil released;
    self.forward(cache, pass);
}

Carries carries_of(const std::string& name) {
    if (name == "nothing") return Carries::kNothing;
    if (name == "stream") return Carries::kStream;
    if (name == "hidden") return Carries::kHidden;
    throw std::invalid_argument("a chain carries '" + name + "'; allowed: nothing, stream, hidden");
}

void draft(Decoder& self, KvCache& cache, Ints32 slots, Ints32 token_ids, Ints32 depths, std::optional<Array<const float, 2>> inputs,
           const std::string& carries, Ints32 draw_nodes, Vector<const double> temperatures, Ints32 top_ks, Vector<const double> top_ps,
           Vector<const double> min_ps, Vector<const std::uint64_t> keys, Ints32 names, float threshold, Array<std::int32_t, 2> drawn,
           Array<std::int32_t, 3> top_ids, Array<float, 3> top_logprobs) {
    const std::vector<DrawSpec> draws = draws_of(draw_nodes, temperatures, top_ks, top_ps, min_ps, keys);
    Chains chains;
    chains.slots = span_of(slots);
    chains.token_ids = span_of(token_ids);
    chains.depths = span_of(depths);
    chains.inputs = data_of(inputs);
    chains.carries = carries_of(carries);
    chains.draws = draws;
    chains.names = span_of(names);
    chains.threshold = threshold;
    chains.drawn = drawn.data();
    chains.top_k = static_cast<int>(top_ids.shape(2));
    chains.top_ids = top_ids.data();
    chains.top_logprobs = top_logprobs.data();
    require_size(drawn.size() == draws.size(), "drawn");
    require_size(top_ids.size() == draws.size() * top_ids.shape(2), "top_ids");
    require_size(top_logprobs.size() == top_ids.size(), "top_logprobs");
    require_size(!inputs || inputs->size() == slots.size() * static_cast<std::size_t>(self.shape().hidden), "inputs");
    const WithoutGil released;
    draft_chains(self, cache, chains);
}

void bind_decoder(nb::module_& m) {
    nb::class_<ThreadPool>(m, "ThreadPool")
        .def(nb::init<int, int>(), "num_threads"_a, "num_cores"_a = 0)
        .def_prop_ro("num_threads", &ThreadPool::num_threads)
        .def("resize", &ThreadPool::resize, "num_threads"_a, nb::call_guard<WithoutGil>());
    nb::class_<Rope>(m, "Rope")
        .def(nb::init<>())
        .def_rw("inverse_frequencies", &Rope::inverse_frequencies)
        .def_rw("magnitude", &Rope::magnitude)
        .def_rw("temperature", &Rope::temperature)
        .def_rw("temperature_length", &Rope::temperature_length);
    nb::class_<Shape>(m, "Shape")
        .def(nb::init<>())
        .def_rw("hidden", &Shape::hidden)
        .def_rw("intermediate", &Shape::intermediate)
        .def_rw("num_layers", &Shape::num_layers)
        .def_rw("num_heads", &Shape::num_heads)
        .def_rw("num_kv_heads", &Shape::num_kv_heads)
        .def_rw("head_dim", &Shape::head_dim)
        .def_rw("vocab", &Shape::vocab)
        .def_rw("norm_eps", &Shape::norm_eps)
        .def_rw("embedded_vocab", &Shape::embedded_vocab)
        .def_rw("joins_embedding", &Shape::joins_embedding)
        .def_rw("norms_residual", &Shape::norms_residual)
        .def_rw("has_final_norm", &Shape::has_final_norm)
        .def_rw("removes_mean", &Shape::removes_mean)
        .def_rw("norms_all_heads", &Shape::norms_all_heads)
        .def_rw("is_parallel", &Shape::is_parallel)
        .def_rw("has_gelu", &Shape::has_gelu)
        .def_rw("embedding_scale", &Shape::embedding_scale)
        .def_rw("attention_scale", &Shape::attention_scale)
        .def_rw("score_cap", &Shape::score_cap)
        .def_rw("logit_cap", &Shape::logit_cap)
        .def_rw("ropes", &Shape::ropes)
        .def_prop_rw(  // of the only rope
            "inverse_frequencies", [](const Shape& self) { return self.ropes.at(0).inverse_frequencies; },
            [](Shape& self, std::vector<float> values) { self.ropes.at(0).inverse_frequencies = std::move(values); });
    nb::class_<Decoder>(m, "Decoder")
        .def("first_layers", &Decoder::first_layers, "num_layers"_a)
        .def(
            "__init__",
            [](Decoder* self, const Shape& shape, const WeightsBuilder& weights, std::shared_ptr<ThreadPool> pool, const std::string& isa) {
                new (self) Decoder(shape, weights.weights, weights.memory, std::move(pool), kernels_named(isa));
            },
            "shape"_a, "weights"_a, "pool"_a, "isa"_a = "auto")
        .def("forward", &forward, "cache"_a, "token_ids"_a, "parents"_a, "positions"_a, "starts"_a, "kv_lens"_a, "slots"_a,
             "inputs"_a.none(), "draw_nodes"_a, "temperatures"_a, "top_ks"_a, "top_ps"_a, "min_ps"_a, "keys"_a, "names"_a, "choices"_a,
             "logit_nodes"_a, "logits"_a.none(), "top_nodes"_a, "top_k"_a, "top_ids"_a.none(), "top_logprobs"_a.none(), "taps"_a,
             "tapped"_a.none(), "hidden"_a.none())
        .def("draft_chains", &draft, "cache"_a, "slots"_a, "token_ids"_a, "depths"_a, "inputs"_a.none(), "carries"_a, "draw_nodes"_a,
             "temperatures"_a, "top_ks"_a, "top_ps"_a, "min_ps"_a, "keys"_a, "names"_a, "threshold"_a, "drawn"_a, "top_ids"_a, "top_logprobs"_a);
    nb::class_<Projection>(m, "Projection")
        .def(
            "__init__",
            [](Projection* self, const Bytes& bytes, const Matrix& matrix, int num_inputs, int num_outputs,
               std::shared_ptr<ThreadPool> pool, const std::string& isa) {
                new (self) Projection(bytes, matrix, num_inputs, num_outputs, std::move(pool), kernels_named(isa));
            },
            "bytes"_a, "matrix"_a, "num_inputs"_a, "num_outputs"_a, "pool"_a, "isa"_a = "auto")
        .def(
            "apply",
            [](Projection& self, Array<const float, 2> inputs, Array<float, 2> outputs) {
                const int rows = static_cast<int>(inputs.shape(0));
                if (static_cast<int>(inputs.shape(1)) != self.num_inputs() || static_cast<int>(outputs.shape(1)) != self.num_outputs() ||
                    outputs.shape(0) != inputs.shape(0))
                    throw std::invalid_argument("inputs or outputs do not have the projection's shape");
                const WithoutGil released;
                self.apply(inputs.data(), rows, outputs.data());
            },
            "inputs"_a, "outputs"_a);
}

void bind_tools(nb::module_& m) {
    m.attr("GROUP") = kGroup;
    m.attr("LANES") = kLanes;
    m.def("available_isas", [] {
        std::vector<std::string> names;
        for (const Kernels* kernels : available_kernels()) names.emplace_back(kernels->name);
        return names;
    });
    m.def("wait_for_long_calls", &wait_for_long_calls);
    m.def("read_bandwidth", &read_bandwidth, "num_bytes"_a, "num_threads"_a, "repeats"_a = 20, nb::call_guard<WithoutGil>(),
          "Bytes a second, in 1e9, at which threads read memory.");
    m.def(
        "pack_int8",
        [](Array<const float, 2> weights, Vector<std::uint8_t> tiles, Vector<float> scales) {
            const std::size_t rows = weights.shape(0), width = weights.shape(1);
            if (rows % kLanes || width % kGroup || tiles.size() != rows * width || scales.size() != rows)
                throw std::invalid_argument("weights must be padded to 16 rows and 64 columns");
            const WithoutGil released;
            pack_int8(weights.data(), rows, width, tiles.data(), scales.data());
        },
        "weights"_a, "tiles"_a, "scales"_a);
    m.def(
        "pack_int4",
        [](Array<const float, 2> weights, Vector<std::uint8_t> tiles, Vector<std::uint16_t> scales) {
            const std::size_t rows = weights.shape(0), width = weights.shape(1);
            if (rows % kLanes || width % kGroup || tiles.size() != rows * width / 2 || scales.size() != rows * width / kSubgroup * 2)
                throw std::invalid_argument("weights must be padded to 16 rows and 64 columns");
            const WithoutGil released;
            pack_int4(weights.data(), rows, width, tiles.data(), scales.data());
        },
        "weights"_a, "tiles"_a, "scales"_a);
    m.def(
        "gumbel",
        [](const std::string& isa, std::uint64_t key, std::int32_t first, Vector<float> noise, Vector<std::int32_t> bits) {
            if (noise.size() != bits.size()) throw std::invalid_argument("noise and bits differ in length");
            const DrawSpec draw{0, 1.0, 0, 1.0, 0.0, key};
            kernels_named(isa).gumbel(noise_of(draw, {}), first, static_cast<std::int32_t>(noise.size()), noise.data(), bits.data());
        },
        "isa"_a, "key"_a, "first"_a, "noise"_a, "bits"_a);
}

}  // namespace
}  // namespace fw

NB_MODULE(_native, m) {
    nb::set_leak_warnings(false);  // a thread that never came back holds what it used
    fw::bind_weights(m);
    fw::bind_cache(m);
    fw::bind_decoder(m);
    fw::bind_tools(m);
}
