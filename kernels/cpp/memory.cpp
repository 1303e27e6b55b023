#include "memory.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <new>
#include <stdexcept>
#include <system_error>

namespace fw {
namespace {

constexpr std::size_t kHugePage = 2u << 20;

struct File {
    int descriptor;
    explicit File(const std::string& path) : descriptor(::open(path.c_str(), O_RDONLY | O_CLOEXEC)) {
        if (descriptor < 0) throw std::system_error(errno, std::generic_category(), path);
    }
    ~File() { ::close(descriptor); }
};

void read_fully(int descriptor, std::uint8_t* into, std::size_t num_bytes, std::size_t offset) {
    while (num_bytes > 0) {
        const ssize_t got = ::pread(descriptor, into, num_bytes, static_cast<off_t>(offset));
        if (got <= 0) throw std::system_error(got < 0 ? errno : EIO, std::generic_category(), "reading packed weights");
        into += got;
        offset += static_cast<std::size_t>(got);
        num_bytes -= static_cast<std::size_t>(got);
    }
}

// Pages of a mapped file, read and entered in the page table now, and not one by one in the first pass. All of it is advice.
void read_ahead(const std::uint8_t* begin, std::size_t num_bytes) {
    const std::uintptr_t page = 4096, from = reinterpret_cast<std::uintptr_t>(begin) / page * page;
    const std::size_t length = reinterpret_cast<std::uintptr_t>(begin) + num_bytes - from;
    void* start = reinterpret_cast<void*>(from);
#ifdef MADV_HUGEPAGE
    ::madvise(start, length, MADV_HUGEPAGE);
#endif
    ::madvise(start, length, MADV_WILLNEED);
#ifdef MADV_POPULATE_READ
    ::madvise(start, length, MADV_POPULATE_READ);
#endif
}

}  // namespace

Buffer::Buffer(std::size_t num_bytes, Pages pages) : size_(num_bytes) {
    if (num_bytes == 0) return;
    const bool is_large = pages == Pages::kHuge && num_bytes >= kHugePage;
    mapped_ = num_bytes + (is_large ? kHugePage : 0);
    mapping_ = ::mmap(nullptr, mapped_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapping_ == MAP_FAILED) {
        mapping_ = nullptr;
        throw std::bad_alloc();
    }
    std::uintptr_t address = reinterpret_cast<std::uintptr_t>(mapping_);
    if (is_large) address = (address + kHugePage - 1) / kHugePage * kHugePage;
    data_ = reinterpret_cast<std::uint8_t*>(address);
#ifdef MADV_HUGEPAGE
    if (is_large) ::madvise(data_, num_bytes, MADV_HUGEPAGE);  // advice: without it things are only slower
#endif
}

Buffer::~Buffer() {
    if (mapping_ != nullptr) ::munmap(mapping_, mapped_);
}

WeightBytes::WeightBytes(const std::string& path, std::size_t hot_begin, std::size_t hot_end, Hold hold)
    : hot_begin_(hot_begin), hot_end_(hot_end) {
    const File file(path);
    struct stat status {};
    if (::fstat(file.descriptor, &status) != 0) throw std::system_error(errno, std::generic_category(), path);
    size_ = static_cast<std::size_t>(status.st_size);
    if (hot_begin > hot_end || hot_end > size_) throw std::out_of_range("the streamed range lies outside " + path);
    void* mapping = ::mmap(nullptr, size_, PROT_READ, MAP_SHARED, file.descriptor, 0);
    if (mapping == MAP_FAILED) throw std::system_error(errno, std::generic_category(), path);
    mapped_ = static_cast<const std::uint8_t*>(mapping);
    if (hold == Hold::kMapped) {
        hot_begin_ = hot_end_ = 0;  // nothing is copied
        read_ahead(mapped_ + hot_begin, hot_end - hot_begin);
        return;
    }
    try {
        hot_ = Buffer(hot_end - hot_begin, Pages::kHuge);
        read_fully(file.descriptor, hot_.data(), hot_end - hot_begin, hot_begin);
    } catch (...) {
        ::munmap(mapping, size_);
        throw;
    }
}

WeightBytes::WeightBytes(const std::uint8_t* bytes, std::size_t num_bytes)
    : size_(num_bytes), hot_end_(num_bytes), hot_(num_bytes, Pages::kHuge) {
    std::memcpy(hot_.data(), bytes, num_bytes);
}

WeightBytes::~WeightBytes() {
    if (mapped_ != nullptr) ::munmap(const_cast<std::uint8_t*>(mapped_), size_);
}

const std::uint8_t* WeightBytes::at(std::size_t offset, std::size_t num_bytes) const {
    if (offset > size_ || num_bytes > size_ - offset) throw std::out_of_range("packed weights end before a tensor does");
    if (offset >= hot_begin_ && offset + num_bytes <= hot_end_) return hot_.data() + (offset - hot_begin_);
    if (mapped_ == nullptr) throw std::out_of_range("packed weights straddle the streamed range");
    return mapped_ + offset;
}

}  // namespace fw
