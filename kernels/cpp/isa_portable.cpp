#define FW_ISA portable_path
#define FW_NAME "portable"
#define FW_TABLE kPortableKernels
#include "isa.hpp"
