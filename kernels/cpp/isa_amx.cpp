#define FW_ISA amx_path
#define FW_NAME "amx"
#define FW_TABLE kAmxKernels
#include "isa.hpp"
