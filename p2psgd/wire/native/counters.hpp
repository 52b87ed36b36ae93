// Counters in memory that two processes share: one side stores, the other loads, and what was written before
// the store is seen after the load. All of them have one order: of two sides that each store a counter and
// then load the other's, one at least sees what the other stored.
#pragma once

#include <atomic>
#include <cstdint>

namespace p2psgd {

static_assert(std::atomic_ref<std::uint64_t>::is_always_lock_free,
              "a lock inside one process would not order two processes");

// Aligned to 8 bytes.
inline std::uint64_t load_counter(const std::uint64_t* counter) noexcept {
    // atomic_ref takes no const before C++26; a load never writes
    return std::atomic_ref<std::uint64_t>(*const_cast<std::uint64_t*>(counter))
        .load(std::memory_order_seq_cst);
}

inline void store_counter(std::uint64_t* counter, std::uint64_t value) noexcept {
    std::atomic_ref<std::uint64_t>(*counter).store(value, std::memory_order_seq_cst);
}

}  // namespace p2psgd
