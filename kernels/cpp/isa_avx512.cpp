#define FW_ISA avx512_path
#define FW_NAME "avx512vnni"
#define FW_TABLE kAvx512Kernels
#include "isa.hpp"
