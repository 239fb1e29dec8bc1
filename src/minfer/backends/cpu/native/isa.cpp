// The table of instruction sets. What a row asks of the processor must cover the compiler flags
// of its kernels in CMakeLists.txt.

#include "isa.h"

#include <stdexcept>

#if defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#endif

namespace minfer {

#if defined(MINFER_HAS_avx512)
namespace avx512 {
extern const Kernels kernels;
}
#endif
#if defined(MINFER_HAS_avx2)
namespace avx2 {
extern const Kernels kernels;
}
#endif
#if defined(MINFER_HAS_neon)
namespace neon {
extern const Kernels kernels;
}
#endif
namespace scalar {
extern const Kernels kernels;
}

namespace {

struct Row {
    const char* name;
    const Kernels* kernels;
    bool (*runs)();
};

#if defined(__x86_64__)
// The compiler's library also asks the system (XGETBV) before it reports wide registers.
[[maybe_unused]] bool has_avx2() {
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
           __builtin_cpu_supports("f16c");
}

[[maybe_unused]] bool has_avx512() {
    return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512vnni");
}
#endif

[[maybe_unused]] bool has_neon() {
#if defined(__aarch64__) && defined(__linux__)
    constexpr unsigned long dot_product = 1ul << 20;  // HWCAP_ASIMDDP
    return getauxval(AT_HWCAP) & dot_product;
#else
    return true;  // every 64-bit ARM that macOS runs on has it
#endif
}

[[maybe_unused]] bool always() { return true; }

const Row kRows[] = {
#if defined(MINFER_HAS_avx512)
    {"avx512", &avx512::kernels, has_avx512},
#endif
#if defined(MINFER_HAS_avx2)
    {"avx2", &avx2::kernels, has_avx2},
#endif
#if defined(MINFER_HAS_neon)
    {"neon", &neon::kernels, has_neon},
#endif
    {"scalar", &scalar::kernels, always},
};

}  // namespace

std::vector<std::string> available_isas() {
    std::vector<std::string> names;
    for (const Row& row : kRows) {
        if (row.runs()) names.emplace_back(row.name);
    }
    return names;
}

const Kernels& kernels_for(const std::string& name) {
    for (const Row& row : kRows) {
        if (row.name == name && row.runs()) return *row.kernels;
    }
    throw std::invalid_argument("no kernels for instruction set " + name);
}

}  // namespace minfer
