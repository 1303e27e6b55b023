#define FW_ISA avxvnni_path
#define FW_NAME "avxvnni"
#define FW_TABLE kAvxVnniKernels
#include "isa.hpp"
