#include "projection.hpp"

#include <cstring>
#include <stdexcept>

namespace fw {

Projection::Projection(std::shared_ptr<const WeightBytes> bytes, const Matrix& matrix, int num_inputs, int num_outputs,
                       std::shared_ptr<ThreadPool> pool, const Kernels& kernels)
    : bytes_(std::move(bytes)), matrix_(matrix), num_inputs_(num_inputs), num_outputs_(num_outputs), pool_(std::move(pool)), kernels_(kernels) {
    if (num_inputs < 1 || num_outputs < 1 || round_up(num_inputs, kGroup) != matrix.width ||
        static_cast<int>(round_up(num_outputs, kLanes) / kLanes) != matrix.num_tiles)
        throw std::invalid_argument("the packed matrix does not have the projection's shape");
}

void Projection::apply(const float* inputs, int num_rows, float* outputs) {
    const std::lock_guard lock(mutex_);
    const std::size_t width = matrix_.width, columns = static_cast<std::size_t>(matrix_.num_tiles) * kLanes;
    rows_.ensure(num_rows, width);
    padded_.ensure(static_cast<std::size_t>(num_rows) * width * sizeof(float));
    products_.ensure(static_cast<std::size_t>(num_rows) * columns * sizeof(float));
    pool_->run([&](int thread) {
        const int num_threads = pool_->num_threads();
        const Share rows(num_rows, thread, num_threads), tiles(matrix_.num_tiles, thread, num_threads);
        for (int i = rows.begin; i < rows.end; ++i) {
            float* row = padded_.as<float>() + i * width;
            std::memcpy(row, inputs + static_cast<std::size_t>(i) * num_inputs_, num_inputs_ * sizeof(float));
            std::memset(row + num_inputs_, 0, (width - num_inputs_) * sizeof(float));
            kernels_.quantise(row, rows_.view, i);
        }
        pool_->barrier();
        if (tiles.begin < tiles.end && num_rows > 0)
            kernels_.matmul(matrix_, rows_.view, num_rows, tiles.begin, tiles.end, {products_.as<float>(), columns, Into::kSet, 0},
                            nullptr);
        pool_->barrier();
        for (int i = rows.begin; i < rows.end; ++i)
            std::memcpy(outputs + static_cast<std::size_t>(i) * num_outputs_, products_.as<float>() + i * columns, num_outputs_ * sizeof(float));
    });
}

}  // namespace fw
