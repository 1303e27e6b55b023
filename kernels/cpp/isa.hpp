// Builds every kernel for one instruction set. The including file defines FW_ISA (a namespace), FW_NAME and FW_TABLE, and is
// compiled with the flags of that set; nothing but what is in that namespace may be emitted, or another processor could run it.
#include <cstddef>
#include <cstdint>

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__ARM_FEATURE_DOTPROD)
#include <arm_neon.h>
#endif

#include "kernels.hpp"

namespace fw {
namespace FW_ISA {
namespace {

#if defined(__AVX512F__)
#include "vec_avx512.hpp"
#elif defined(__AVX2__)
#include "vec_avx2.hpp"
#else
#include "vec_scalar.hpp"
#endif
#include "vmath.hpp"
#include "elementwise.hpp"
#include "attention.hpp"
#include "draw.hpp"
#include "stream.hpp"
#if defined(__AVX512F__)
#include "dot_avx512.hpp"
#elif defined(__AVXVNNI__)
#include "dot_avxvnni.hpp"
#elif defined(__AVX2__)
#include "dot_avx2.hpp"
#else
#include "dot_portable.hpp"
#endif
#include "matmul.hpp"
#if defined(__AMX_INT8__)
#include "matmul_amx.hpp"
#include "matmul_amx4.hpp"
#include "matmul_by_tiles.hpp"
#else
constexpr auto matmul = matmul_by_dots;
#endif

constexpr Kernels kTable = {FW_NAME, rms_norm,       layer_norm,  quantise,        matmul, rotate, attend, soft_cap,
                            best_greedy, best_perturbed, log_sum_exp, softmax_weights, gumbel, read_stream};

}  // namespace
}  // namespace FW_ISA

extern const Kernels* const FW_TABLE;
const Kernels* const FW_TABLE = &FW_ISA::kTable;

}  // namespace fw
