#include "select.hpp"

#include <atomic>
#include <cstring>

#include "cpu.hpp"
#include "paths.hpp"

namespace p2psgd {
namespace {

#define P2PSGD_TABLE(path, name, demand) \
    {name,                               \
     demand,                             \
     path::encode,                       \
     path::encode_as,                    \
     path::decode,                       \
     path::measure,                      \
     path::residual_pass,                \
     path::apply_coordinates,            \
     path::apply_weights,                \
     path::apply_coordinates_together,   \
     path::apply_weights_together,       \
     path::digest_words,                 \
     path::digest_coordinates,           \
     path::crc32c,                       \
     path::add_numbers,                  \
     path::check_numbers,                \
     path::copy_numbers,                 \
     path::move_weights}

constexpr Kernels tables[] = {
    P2PSGD_TABLE(portable, "portable", "nothing"),
#if defined(P2PSGD_AVX2)
    P2PSGD_TABLE(avx2, "avx2", "AVX2"),
    P2PSGD_TABLE(avx2_bmi2, "avx2+bmi2", "AVX2, and pext and pdep in hardware"),
#endif
};

#undef P2PSGD_TABLE

constexpr std::size_t tables_count = sizeof tables / sizeof tables[0];

const Kernels* best() noexcept {
    const Kernels* found = tables;
    for (const Kernels& path : tables) {
        if (runs_here(path)) found = &path;
    }
    return found;
}

std::atomic<const Kernels*>& in_use() noexcept {
    static std::atomic<const Kernels*> chosen{best()};
    return chosen;
}

}  // namespace

const Kernels* paths() noexcept { return tables; }
std::size_t paths_count() noexcept { return tables_count; }

bool runs_here(const Kernels& path) noexcept {
    static const Cpu cpu = detect_cpu();
    switch (&path - tables) {
        case 0: return true;
        case 1: return cpu.avx2;
        default: return cpu.fast_pext;
    }
}

const Kernels& kernels() noexcept { return *in_use().load(std::memory_order_relaxed); }

bool use_path(const char* name) noexcept {
    for (const Kernels& path : tables) {
        if (std::strcmp(path.name, name) != 0) continue;
        if (!runs_here(path)) return false;
        in_use().store(&path, std::memory_order_relaxed);
        return true;
    }
    return false;
}

}  // namespace p2psgd
