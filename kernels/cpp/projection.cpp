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
    const auto quantise = [&](int begin, int end) {
        for (int i = begin; i < end; ++i) {
            float* row = padded_.as<float>() + i * width;
            std::memcpy(row, inputs + static_cast<std::size_t>(i) * num_inputs_, num_inputs_ * sizeof(float));
            std::memset(row + num_inputs_, 0, (width - num_inputs_) * sizeof(float));
            kernels_.quantise(row, rows_.view, i);
        }
    };
    const auto multiply = [&](int begin, int end) {
        kernels_.matmul(matrix_, rows_.view, num_rows, begin, end, {products_.as<float>(), columns, Into::kSet, 0}, nullptr);
    };
    const auto copy_out = [&](int begin, int end) {
        for (int i = begin; i < end; ++i)
            std::memcpy(outputs + static_cast<std::size_t>(i) * num_outputs_, products_.as<float>() + i * columns, num_outputs_ * sizeof(float));
    };
    const Stage stages[] = {{num_rows, 4}, {num_rows > 0 ? matrix_.num_tiles : 0, 8}, {num_rows, 4}};
    pool_->run(stages, [&](int stage, int begin, int end, int) {
        if (stage == 0) quantise(begin, end);
        if (stage == 1) multiply(begin, end);
        if (stage == 2) copy_out(begin, end);
    });
}

}  // namespace fw
