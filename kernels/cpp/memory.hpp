// Memory that kernels work in: aligned, zeroed, on huge pages where the system has them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

namespace fw {

// Streaming weights through 4 KiB pages costs a good part of the bandwidth; but a huge page takes its 2 MiB at the first byte.
enum class Pages { kSmall, kHuge };

// Zeroed, aligned to a page or better.
class Buffer {
public:
    Buffer() = default;
    explicit Buffer(std::size_t num_bytes, Pages pages = Pages::kSmall);
    ~Buffer();
    Buffer(Buffer&& other) noexcept { swap(other); }
    Buffer& operator=(Buffer&& other) noexcept {
        swap(other);
        return *this;
    }

    std::uint8_t* data() const { return data_; }
    std::size_t size() const { return size_; }
    template <typename T>
    T* as() const {
        return reinterpret_cast<T*>(data_);
    }
    // At least this large afterwards; what it held is lost when it grows.
    void ensure(std::size_t num_bytes) {
        if (num_bytes > size_) *this = Buffer(num_bytes + num_bytes / 4);
    }

private:
    void swap(Buffer& other) noexcept {
        std::swap(data_, other.data_);
        std::swap(size_, other.size_);
        std::swap(mapping_, other.mapping_);
        std::swap(mapped_, other.mapped_);
    }
    std::uint8_t* data_ = nullptr;
    std::size_t size_ = 0;
    void* mapping_ = nullptr;
    std::size_t mapped_ = 0;
};

// How the part of a file is held that every pass streams: copied to huge pages of this process, or mapped, so that all processes
// that have the file open share its pages and nothing is read twice.
enum class Hold { kCopied, kMapped };

// The bytes of packed weights: a file, or memory. The rest of a file (the embedding) is mapped in any case, so that only rows that
// are used take memory.
class WeightBytes {
public:
    WeightBytes(const std::string& path, std::size_t hot_begin, std::size_t hot_end, Hold hold);
    WeightBytes(const std::uint8_t* bytes, std::size_t num_bytes);
    ~WeightBytes();
    WeightBytes(const WeightBytes&) = delete;
    WeightBytes& operator=(const WeightBytes&) = delete;

    // Throws std::out_of_range where [offset, offset + num_bytes) is not inside.
    const std::uint8_t* at(std::size_t offset, std::size_t num_bytes) const;
    std::size_t size() const { return size_; }

private:
    const std::uint8_t* mapped_ = nullptr;
    std::size_t size_ = 0, hot_begin_ = 0, hot_end_ = 0;
    Buffer hot_;
};

}  // namespace fw
