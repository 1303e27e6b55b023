#define FW_ISA avx2_path
#define FW_NAME "avx2"
#define FW_TABLE kAvx2Kernels
#include "isa.hpp"
