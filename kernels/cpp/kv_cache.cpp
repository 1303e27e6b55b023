#include "kv_cache.hpp"

#include <algorithm>
#include <cstring>
#include <limits>
#include <new>
#include <stdexcept>
#include <string>

namespace fw {
namespace {

constexpr std::size_t kRowStep = 64;  // capacities are multiples of this
constexpr std::size_t kHugeRows = 2048;  // longer regions are often not filled

// Keys lie with sixteen positions side by side.
inline std::size_t key_offset(std::size_t row, std::size_t dim) { return row / kLanes * kLanes * dim + row % kLanes; }

[[noreturn]] void refuse(const std::string& message) { throw std::invalid_argument(message); }

// Passes number rows with int.
constexpr std::size_t kMostRows = static_cast<std::size_t>(std::numeric_limits<int>::max()) / kRowStep * kRowStep;

std::size_t whole_steps(std::size_t capacity) {
    if (capacity > kMostRows) throw std::bad_alloc();
    return round_up(capacity, kRowStep);
}

std::size_t region_bytes(KvFormat format, std::size_t num_layers, std::size_t num_heads, std::size_t dim, std::size_t rows) {
    std::size_t total = 2 * num_bytes_of(format);  // a key and a value
    for (const std::size_t factor : {num_layers, num_heads, dim, rows})
        if (__builtin_mul_overflow(total, factor, &total)) throw std::bad_alloc();
    return total;
}

// Numbers as regions hold them.
inline void write(float& to, float value) { to = value; }
inline float read(float value) { return value; }
// The upper half of a float32, to nearest, ties to even; NaN stays NaN.
inline void write(std::uint16_t& to, float value) {
    std::uint32_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    const std::uint32_t rounded = bits + 0x7FFFu + (bits >> 16 & 1u);
    to = static_cast<std::uint16_t>(((bits & 0x7FFFFFFFu) > 0x7F800000u ? bits | 0x400000u : rounded) >> 16);
}
inline float read(std::uint16_t value) {
    const std::uint32_t bits = static_cast<std::uint32_t>(value) << 16;
    float wide;
    std::memcpy(&wide, &bits, sizeof wide);
    return wide;
}

// Calls step(number) with a number of the type that `format` is held in.
template <typename Step>
inline void in_format(KvFormat format, const Step& step) {
    if (format == KvFormat::kFloat32)
        step(float());
    else
        step(std::uint16_t());
}

template <typename Number>
inline Number* numbers(std::uint8_t* bytes) {
    return reinterpret_cast<Number*>(bytes);
}

}  // namespace

KvRegion::KvRegion(KvFormat format, int num_layers, int num_heads, std::size_t dim, std::size_t capacity)
    : format_(format),
      num_layers_(num_layers),
      num_heads_(num_heads),
      dim_(dim),
      capacity_(whole_steps(capacity)),
      memory_(region_bytes(format, static_cast<std::size_t>(num_layers), static_cast<std::size_t>(num_heads), dim, capacity_),
              capacity_ <= kHugeRows ? Pages::kHuge : Pages::kSmall) {}

void KvRegion::place_key(int layer, int head, std::size_t row, const float* key) {
    in_format(format_, [&]<typename Number>(Number) {
        Number* column = numbers<Number>(keys(layer, head)) + key_offset(row, dim_);
        for (std::size_t d = 0; d < dim_; ++d) write(column[d * kLanes], key[d]);
    });
}

void KvRegion::place_value(int layer, int head, std::size_t row, const float* value) {
    in_format(format_, [&]<typename Number>(Number) {
        Number* to = numbers<Number>(values(layer, head)) + row * dim_;
        for (std::size_t d = 0; d < dim_; ++d) write(to[d], value[d]);
    });
}

void KvRegion::move_row(std::size_t from, std::size_t to) {
    in_format(format_, [&]<typename Number>(Number) {
        for (int layer = 0; layer < num_layers_; ++layer)
            for (int head = 0; head < num_heads_; ++head) {
                Number *held = numbers<Number>(keys(layer, head)), *rows = numbers<Number>(values(layer, head));
                const Number* source = held + key_offset(from, dim_);
                Number* target = held + key_offset(to, dim_);
                for (std::size_t d = 0; d < dim_; ++d) target[d * kLanes] = source[d * kLanes];
                std::memcpy(rows + to * dim_, rows + from * dim_, dim_ * sizeof(Number));
            }
    });
}

void KvRegion::grow(std::size_t capacity) {
    KvRegion larger(format_, num_layers_, num_heads_, dim_, capacity);
    larger.copy_rows(*this, capacity_);
    capacity_ = larger.capacity_;
    memory_ = std::move(larger.memory_);
}

void KvRegion::copy_rows(const KvRegion& from, std::size_t num_rows) {
    if (num_rows == 0) return;
    for (int layer = 0; layer < num_layers_; ++layer)
        for (int head = 0; head < num_heads_; ++head) {
            std::memcpy(keys(layer, head), from.keys(layer, head), round_up(num_rows, kLanes) * row_bytes());
            std::memcpy(values(layer, head), from.values(layer, head), num_rows * row_bytes());
        }
}

void KvRegion::save_rows(std::size_t first, std::size_t num_rows, std::uint8_t* out) const {
    const std::size_t at = first * row_bytes(), size = num_rows * row_bytes();
    for (int layer = 0; layer < num_layers_; ++layer)
        for (int head = 0; head < num_heads_; ++head, out += 2 * size) {
            std::memcpy(out, keys(layer, head) + at, size);
            std::memcpy(out + size, values(layer, head) + at, size);
        }
}

void KvRegion::load_rows(std::size_t first, std::size_t num_rows, const std::uint8_t* in) {
    const std::size_t at = first * row_bytes(), size = num_rows * row_bytes();
    for (int layer = 0; layer < num_layers_; ++layer)
        for (int head = 0; head < num_heads_; ++head, in += 2 * size) {
            std::memcpy(keys(layer, head) + at, in, size);
            std::memcpy(values(layer, head) + at, in + size, size);
        }
}

void KvRegion::copy_out(std::size_t num_rows, std::size_t head_dim, float* keys_out, float* values_out) const {
    in_format(format_, [&]<typename Number>(Number) {
        for (int layer = 0; layer < num_layers_; ++layer)
            for (int head = 0; head < num_heads_; ++head)
                for (std::size_t row = 0; row < num_rows; ++row) {
                    const Number* column = numbers<Number>(keys(layer, head)) + key_offset(row, dim_);
                    const Number* value = numbers<Number>(values(layer, head)) + row * dim_;
                    for (std::size_t d = 0; d < head_dim; ++d) {
                        *keys_out++ = read(column[d * kLanes]);
                        *values_out++ = read(value[d]);
                    }
                }
    });
}

KvCache::KvCache(int num_layers, int num_heads, int head_dim, KvFormat format)
    : num_layers_(num_layers), num_heads_(num_heads), head_dim_(head_dim), format_(format) {
    if (num_layers < 0 || num_heads < 1 || head_dim < 1) refuse("layers must be 0 or above, heads and their size 1 or above");
}

KvRegion& KvCache::region(int slot) {
    if (slot < 0 || slot >= static_cast<int>(regions_.size()) || !regions_[slot])
        refuse("slot " + std::to_string(slot) + " is not open");
    return *regions_[slot];
}

int KvCache::open(std::int64_t capacity) {
    const std::lock_guard lock(mutex);
    if (capacity < 0) refuse("capacity is " + std::to_string(capacity) + "; allowed: 0 or above");
    auto region = std::make_unique<KvRegion>(format_, num_layers_, num_heads_, padded_dim(), static_cast<std::size_t>(capacity));
    return place_region(std::move(region));
}

int KvCache::place_region(std::unique_ptr<KvRegion> region) {
    for (std::size_t slot = 0; slot < regions_.size(); ++slot)
        if (!regions_[slot]) {
            regions_[slot] = std::move(region);
            return static_cast<int>(slot);
        }
    regions_.push_back(std::move(region));
    return static_cast<int>(regions_.size()) - 1;
}

void KvCache::close(int slot) {
    const std::lock_guard lock(mutex);
    region(slot);
    regions_[slot].reset();
}

void KvCache::reserve(int slot, std::int64_t capacity) {
    const std::lock_guard lock(mutex);
    KvRegion& held = region(slot);
    const std::size_t wanted = static_cast<std::size_t>(capacity < 0 ? 0 : capacity);
    // Grow by half at least, so that many small steps copy each row a constant number of times.
    if (wanted > held.capacity()) held.grow(wanted > held.capacity() * 3 / 2 ? wanted : held.capacity() * 3 / 2);
}

std::int64_t KvCache::length(int slot) {
    const std::lock_guard lock(mutex);
    return static_cast<std::int64_t>(region(slot).length);
}

void KvCache::commit(int slot, const std::vector<std::int64_t>& path) {
    const std::lock_guard lock(mutex);
    KvRegion& held = region(slot);
    std::int64_t before = -1;
    for (const std::int64_t node : path) {
        if (node <= before || static_cast<std::size_t>(node) >= held.num_scratch)
            refuse("a path must ascend within the " + std::to_string(held.num_scratch) + " nodes of the last pass; node " +
                   std::to_string(node) + " does not");
        before = node;
    }
    const std::size_t first = held.length;
    for (std::size_t i = 0; i < path.size(); ++i)
        if (static_cast<std::size_t>(path[i]) != i) held.move_row(first + static_cast<std::size_t>(path[i]), first + i);
    held.length = first + path.size();
    held.num_scratch = 0;
}

void KvCache::truncate(int slot, std::int64_t length) {
    const std::lock_guard lock(mutex);
    KvRegion& held = region(slot);
    if (length < 0 || static_cast<std::size_t>(length) > held.length)
        refuse("length is " + std::to_string(length) + "; allowed: 0 to " + std::to_string(held.length));
    held.length = static_cast<std::size_t>(length);
    held.num_scratch = 0;
}

int KvCache::fork(int slot, std::int64_t length, std::int64_t capacity) {
    const std::lock_guard lock(mutex);
    const KvRegion& held = region(slot);
    if (length < 0 || static_cast<std::size_t>(length) > held.length)
        refuse("length is " + std::to_string(length) + "; allowed: 0 to " + std::to_string(held.length));
    auto fork = std::make_unique<KvRegion>(format_, num_layers_, num_heads_, padded_dim(), static_cast<std::size_t>(std::max(length, capacity)));
    fork->copy_rows(held, static_cast<std::size_t>(length));
    fork->length = static_cast<std::size_t>(length);
    return place_region(std::move(fork));
}

void KvCache::copy_out(int slot, float* keys, float* values) {
    const std::lock_guard lock(mutex);
    const KvRegion& held = region(slot);
    held.copy_out(held.length, static_cast<std::size_t>(head_dim_), keys, values);
}

// How many rows so many bytes are; refuses what is no whole number of groups.
static std::size_t rows_in(const KvRegion& held, std::size_t first, std::size_t num_bytes) {
    const std::size_t group = held.bytes_of_rows(kLanes);
    if (first % kLanes != 0) refuse("rows begin at " + std::to_string(first) + "; allowed: multiples of " + std::to_string(kLanes));
    if (group == 0 || num_bytes % group != 0)
        refuse(std::to_string(num_bytes) + " bytes are no whole groups of " + std::to_string(kLanes) + " rows, which take " +
               std::to_string(group));
    return num_bytes / group * kLanes;
}

void KvCache::save_rows(int slot, std::int64_t first, std::span<std::uint8_t> out) {
    const std::lock_guard lock(mutex);
    const KvRegion& held = region(slot);
    if (first < 0 || static_cast<std::size_t>(first) > held.length)
        refuse("rows begin at " + std::to_string(first) + "; allowed: 0 to " + std::to_string(held.length));
    const std::size_t begin = static_cast<std::size_t>(first), count = rows_in(held, begin, out.size());
    if (count > held.length - begin)
        refuse(std::to_string(count) + " rows from " + std::to_string(first) + " on are more than the " + std::to_string(held.length) +
               " that are committed");
    held.save_rows(begin, count, out.data());
}

void KvCache::load_rows(int slot, std::span<const std::uint8_t> in) {
    const std::lock_guard lock(mutex);
    KvRegion& held = region(slot);
    const std::size_t count = rows_in(held, held.length, in.size());
    if (count > held.capacity() - held.length)
        refuse(std::to_string(count) + " rows do not fit behind " + std::to_string(held.length) + " of " + std::to_string(held.capacity()));
    held.load_rows(held.length, count, in.data());
    held.length += count;
    held.num_scratch = 0;
}

int KvCache::num_open() {
    const std::lock_guard lock(mutex);
    int count = 0;
    for (const auto& held : regions_) count += held != nullptr;
    return count;
}

std::size_t KvCache::num_bytes() {
    const std::lock_guard lock(mutex);
    std::size_t total = 0;
    for (const auto& held : regions_)
        if (held) total += held->num_bytes();
    return total;
}

}  // namespace fw
