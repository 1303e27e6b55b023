// Keys and values of many requests, one region each, all layers and key-value heads of a request in one block of memory.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "kernels.hpp"
#include "memory.hpp"

namespace fw {

// Of one layer and key-value head: keys [capacity / 16][dim][16], then values [capacity][dim], all of one number format.
class KvRegion {
public:
    KvRegion(KvFormat format, int num_layers, int num_heads, std::size_t dim, std::size_t capacity);

    std::uint8_t* keys(int layer, int head) const { return memory_.data() + index(layer, head) * 2 * head_bytes(); }
    std::uint8_t* values(int layer, int head) const { return keys(layer, head) + head_bytes(); }
    // Writes the key or the value of one row, rounded to the region's format.
    void place_key(int layer, int head, std::size_t row, const float* key);
    void place_value(int layer, int head, std::size_t row, const float* value);
    void move_row(std::size_t from, std::size_t to);
    void grow(std::size_t capacity);
    // The first rows of a region of the same shape, bit by bit; neither may have fewer.
    void copy_rows(const KvRegion& from, std::size_t num_rows);
    void copy_out(std::size_t num_rows, std::size_t head_dim, float* keys_out, float* values_out) const;
    // Rows as bytes, bit by bit: of each layer and head the keys as they lie, then the values. `first` and `num_rows` are multiples of 16.
    void save_rows(std::size_t first, std::size_t num_rows, std::uint8_t* out) const;
    void load_rows(std::size_t first, std::size_t num_rows, const std::uint8_t* in);
    std::size_t bytes_of_rows(std::size_t num_rows) const {
        return num_rows * 2 * static_cast<std::size_t>(num_layers_) * static_cast<std::size_t>(num_heads_) * row_bytes();
    }

    KvFormat format() const { return format_; }
    std::size_t capacity() const { return capacity_; }
    std::size_t num_bytes() const { return memory_.size(); }
    std::size_t length = 0;       // committed rows
    std::size_t num_scratch = 0;  // rows after them that the last pass wrote

private:
    std::size_t index(int layer, int head) const { return static_cast<std::size_t>(layer) * num_heads_ + head; }
    std::size_t row_bytes() const { return dim_ * num_bytes_of(format_); }  // of a key or a value of a head
    std::size_t head_bytes() const { return capacity_ * row_bytes(); }      // of all keys or all values of a head
    KvFormat format_;
    int num_layers_, num_heads_;
    std::size_t dim_, capacity_;
    Buffer memory_;
};

// Methods throw std::invalid_argument for slots that are not open and rows that do not exist, std::bad_alloc for regions too large.
class KvCache {
public:
    KvCache(int num_layers, int num_heads, int head_dim, KvFormat format = KvFormat::kFloat32);

    int open(std::int64_t capacity);
    void close(int slot);
    void reserve(int slot, std::int64_t capacity);
    std::int64_t length(int slot);
    void commit(int slot, const std::vector<std::int64_t>& path);
    void truncate(int slot, std::int64_t length);
    // A new region of at least `capacity` rows that begins with the first `length` committed rows of another; returns its slot.
    int fork(int slot, std::int64_t length, std::int64_t capacity);
    void copy_out(int slot, float* keys, float* values);
    // Committed rows as bytes, and such bytes as the next committed rows. Rows come in groups of 16, on both sides.
    void save_rows(int slot, std::int64_t first, std::span<std::uint8_t> out);
    void load_rows(int slot, std::span<const std::uint8_t> in);
    int num_open();
    std::size_t num_bytes();

    int num_layers() const { return num_layers_; }
    int num_heads() const { return num_heads_; }
    int head_dim() const { return head_dim_; }
    std::size_t padded_dim() const { return round_up(static_cast<std::size_t>(head_dim_), kLanes); }
    // The caller holds `mutex` for as long as it uses the region.
    KvRegion& region(int slot);
    std::mutex mutex;

private:
    int place_region(std::unique_ptr<KvRegion> region);
    int num_layers_, num_heads_, head_dim_;
    KvFormat format_;
    std::vector<std::unique_ptr<KvRegion>> regions_;
};

}  // namespace fw
