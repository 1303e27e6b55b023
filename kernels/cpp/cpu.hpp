// What this processor can run.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "kernels.hpp"

namespace fw {

// Cores that this process may run on; 1 at least.
int allowed_cores();

// Every path that was built and runs here, fastest first. AMX is asked for from the system on the first call.
std::vector<const Kernels*> available_kernels();

// The path of this name; the fastest for "auto". Throws std::invalid_argument where it does not run here.
const Kernels& kernels_named(const std::string& name);

// Bytes a second (in 1e9) at which `num_threads` threads read about `num_bytes` of memory, the best of `repeats`. Threads below 1: 1.
double read_bandwidth(std::size_t num_bytes, int num_threads, int repeats);

}  // namespace fw
