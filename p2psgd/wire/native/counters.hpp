// Counters in memory that two processes share: one side stores, the other loads, and what was written before
// the store is seen after the load.
#pragma once

#include <atomic>
#include <cstdint>

namespace p2psgd {

static_assert(std::atomic_ref<std::uint64_t>::is_always_lock_free,
              "a lock inside one process would not order two processes");

// Aligned to 8 bytes. The store is a release, the load an acquire.
inline std::uint64_t load_counter(const std::uint64_t* counter) noexcept {
    // atomic_ref takes no const before C++26; an acquire load never writes
    return std::atomic_ref<std::uint64_t>(*const_cast<std::uint64_t*>(counter))
        .load(std::memory_order_acquire);
}

inline void store_counter(std::uint64_t* counter, std::uint64_t value) noexcept {
    std::atomic_ref<std::uint64_t>(*counter).store(value, std::memory_order_release);
}

}  // namespace p2psgd
