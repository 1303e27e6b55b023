#include "cpu.hpp"

#include <algorithm>
#include <stdexcept>
#include <thread>

#if defined(__linux__)
#include <sched.h>
#endif

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#elif defined(__aarch64__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

namespace fw {
namespace {

#if defined(__x86_64__)

struct Registers {
    unsigned a = 0, b = 0, c = 0, d = 0;
    bool bit(unsigned value, int index) const { return (value >> index & 1u) != 0; }
};

Registers cpuid(unsigned leaf, unsigned subleaf) {
    Registers r;
    __get_cpuid_count(leaf, subleaf, &r.a, &r.b, &r.c, &r.d);
    return r;
}

// Which register states the system saves.
unsigned long long enabled_states() {
    if (!cpuid(1, 0).bit(cpuid(1, 0).c, 27)) return 0;
    unsigned low = 0, high = 0;
    asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return (static_cast<unsigned long long>(high) << 32) | low;
}

constexpr unsigned long long kAvxStates = 0x6, kAvx512States = 0xE6, kTileStates = 0x60000;

bool has_avx2() {
    const Registers one = cpuid(1, 0), seven = cpuid(7, 0);
    const bool fma = one.bit(one.c, 12), half = one.bit(one.c, 29), avx2 = seven.bit(seven.b, 5);
    return fma && half && avx2 && (enabled_states() & kAvxStates) == kAvxStates;
}

bool has_avxvnni() {
    const Registers more = cpuid(7, 1);
    return has_avx2() && more.bit(more.a, 4);
}

bool has_avx512vnni() {
    const Registers seven = cpuid(7, 0);
    const bool base = seven.bit(seven.b, 16), dq = seven.bit(seven.b, 17), bw = seven.bit(seven.b, 30), vl = seven.bit(seven.b, 31);
    return has_avx2() && base && dq && bw && vl && seven.bit(seven.c, 11) && (enabled_states() & kAvx512States) == kAvx512States;
}

// Linux gives a process the tile registers only on request; asking again is harmless.
bool may_use_tiles() {
#if defined(__linux__)
    constexpr long kRequestPermission = 0x1023, kTileData = 18;
    return ::syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
#else
    return false;
#endif
}

bool has_amx() {
    const Registers seven = cpuid(7, 0);
    const bool tile = seven.bit(seven.d, 24), int8 = seven.bit(seven.d, 25);
    return has_avx512vnni() && tile && int8 && (enabled_states() & kTileStates) == kTileStates && may_use_tiles();
}

#elif defined(__aarch64__)
bool has_dotprod() { return (::getauxval(AT_HWCAP) & HWCAP_ASIMDDP) != 0; }
#endif

}  // namespace

int allowed_cores() {
#if defined(__linux__)
    cpu_set_t set;
    if (::sched_getaffinity(0, sizeof set, &set) == 0) return std::max(CPU_COUNT(&set), 1);
#endif
    return static_cast<int>(std::max(std::thread::hardware_concurrency(), 1u));
}

std::vector<const Kernels*> available_kernels() {
    std::vector<const Kernels*> found;
#if defined(FOREWORD_HAS_AMX)
    if (has_amx()) found.push_back(kAmxKernels);
#endif
#if defined(FOREWORD_HAS_AVX512)
    if (has_avx512vnni()) found.push_back(kAvx512Kernels);
#endif
#if defined(FOREWORD_EMULATES_AVXVNNI)
    found.push_back(kAvxVnniKernels);
#endif
#if defined(FOREWORD_HAS_AVXVNNI)
    if (has_avxvnni()) found.push_back(kAvxVnniKernels);
#endif
#if defined(FOREWORD_HAS_AVX2)
    if (has_avx2()) found.push_back(kAvx2Kernels);
#endif
#if defined(FOREWORD_HAS_DOTPROD)
    if (has_dotprod()) found.push_back(kDotprodKernels);
#endif
    found.push_back(kPortableKernels);
    return found;
}

const Kernels& kernels_named(const std::string& name) {
    std::string names = "auto";
    for (const Kernels* kernels : available_kernels()) {
        if (name == "auto" || name == kernels->name) return *kernels;
        names += std::string(", ") + kernels->name;
    }
    throw std::invalid_argument("the instruction set '" + name + "' does not run here; allowed: " + names);
}

}  // namespace fw
