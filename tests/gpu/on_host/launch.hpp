// Launching kernels on the host, by name, with an array of pointers to the arguments as cuLaunchKernel takes
// it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

namespace cuda_on_host {

struct Kernel {
    const char* name;
    void (*call)(void** arguments);
    const std::size_t* argument_bytes;
    std::size_t arguments;
};

template <auto function>
struct Adapted;

template <typename... Arguments, void (*function)(Arguments...)>
struct Adapted<function> {
    static constexpr std::size_t argument_bytes[] = {sizeof(Arguments)...};
    static void call(void** arguments) {
        [&]<std::size_t... index>(std::index_sequence<index...>) {
            function(*static_cast<std::remove_const_t<Arguments>*>(arguments[index])...);
        }(std::index_sequence_for<Arguments...>{});
    }
    static constexpr Kernel kernel(const char* name) {
        return {name, call, argument_bytes, sizeof...(Arguments)};
    }
};

// Whose turn it is among the blocks, and among the threads of a block.
enum class Order : unsigned { forward, reverse, random };

struct Schedule {
    Order order = Order::forward;
    std::uint64_t seed = 0;        // of the random order, and of the garbage in shared memory
    unsigned resident_blocks = 4;  // under way at a time
};

// Null, or one sentence that says what stopped the kernel.
const char* run(const Kernel& kernel, unsigned grid, unsigned block, void** arguments, Schedule schedule);

}  // namespace cuda_on_host
