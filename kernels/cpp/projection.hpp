// A linear map by itself: Medusa's heads, EAGLE's fc.
#pragma once

#include <memory>
#include <mutex>

#include "decoder.hpp"
#include "workspace.hpp"

namespace fw {

class Projection {
public:
    Projection(std::shared_ptr<const WeightBytes> bytes, const Matrix& matrix, int num_inputs, int num_outputs,
               std::shared_ptr<ThreadPool> pool, const Kernels& kernels);

    int num_inputs() const { return num_inputs_; }
    int num_outputs() const { return num_outputs_; }
    // inputs [rows][num_inputs], outputs [rows][num_outputs]
    void apply(const float* inputs, int num_rows, float* outputs);

private:
    std::shared_ptr<const WeightBytes> bytes_;
    Matrix matrix_;
    int num_inputs_, num_outputs_;
    std::shared_ptr<ThreadPool> pool_;
    const Kernels& kernels_;
    std::mutex mutex_;
    ActivationRows rows_;
    Buffer padded_, products_;
};

}  // namespace fw
