#define FW_ISA dotprod_path
#define FW_NAME "dotprod"
#define FW_TABLE kDotprodKernels
#include "isa.hpp"
