#include "launch.hpp"

#include <algorithm>
#include <csetjmp>
#include <cstdlib>
#include <mutex>
#include <random>
#include <string>
#include <sys/mman.h>
#include <ucontext.h>
#include <vector>

#include "cuda_on_host.hpp"

#undef threadIdx
#undef blockIdx
#undef blockDim
#undef gridDim

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#endif

// The linker's names for the ends of the section that __shared__ variables lie in.
extern "C" char __start_cuda_shared[] __attribute__((weak));
extern "C" char __stop_cuda_shared[] __attribute__((weak));

namespace cuda_on_host {

thread_local Place* here = nullptr;
Launch launch;

namespace {

constexpr std::size_t stack_bytes = std::size_t{1} << 17;
constexpr unsigned warp_lanes = 32;

enum class Wait : unsigned char { nothing, block, warp, others, ended };

struct Fiber {
    Place place{};  // first: `here` points to it
    Wait wait = Wait::ended;
    unsigned block = 0;        // its place among the resident ones
    unsigned collectives = 0;  // warp operations done
    ucontext_t context{};
    std::jmp_buf point;
    bool entered = false;
    void* stack = nullptr;  // of the pool
    void* fake_stack = nullptr;
};

struct Warp {
    std::uint64_t given[2]
                       [warp_lanes];  // by turns: a lane may be one operation ahead of one that still reads
    unsigned arrived = 0;
    Operation operation{};
};

struct Block {
    bool live = false;
    unsigned waiting = 0;  // at the barrier
    unsigned left = 0;     // threads that have not ended
    std::vector<Fiber> fibers;
    std::vector<Warp> warps;
    std::vector<char> shared;
};

std::vector<Block> blocks;
std::mt19937_64 chance;
Schedule chosen;
const Kernel* running = nullptr;
void** running_arguments = nullptr;
std::string failure;
bool failed = false;

ucontext_t scheduler;
std::jmp_buf scheduler_point;
#if defined(__SANITIZE_ADDRESS__)
const void* scheduler_stack = nullptr;
std::size_t scheduler_stack_bytes = 0;
#endif

Fiber& self() noexcept { return *reinterpret_cast<Fiber*>(here); }

// Back to the scheduler; returns when it is this fiber's turn again.
void leave(Fiber& fiber) {
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_start_switch_fiber(fiber.wait == Wait::ended ? nullptr : &fiber.fake_stack, scheduler_stack,
                                   scheduler_stack_bytes);
    swapcontext(&fiber.context, &scheduler);
    __sanitizer_finish_switch_fiber(fiber.fake_stack, &scheduler_stack, &scheduler_stack_bytes);
#else
    if (_setjmp(fiber.point) == 0) _longjmp(scheduler_point, 1);
#endif
}

void begin_fiber() {
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(nullptr, &scheduler_stack, &scheduler_stack_bytes);
#endif
    running->call(running_arguments);
    Fiber& fiber = self();
    fiber.wait = Wait::ended;
    leave(fiber);
    std::abort();  // nobody resumes a thread that has ended
}

void resume(Fiber& fiber) {
    here = &fiber.place;
    fiber.wait = Wait::nothing;
#if defined(__SANITIZE_ADDRESS__)
    void* own_fake_stack = nullptr;
    __sanitizer_start_switch_fiber(&own_fake_stack, fiber.stack, stack_bytes);
    swapcontext(&scheduler, &fiber.context);
    __sanitizer_finish_switch_fiber(own_fake_stack, nullptr, nullptr);
#else
    if (_setjmp(scheduler_point) == 0) {
        if (fiber.entered) _longjmp(fiber.point, 1);
        fiber.entered = true;  // its first turn: later ones need no system call
        setcontext(&fiber.context);
    }
#endif
}

// Kept from launch to launch.
void* stack_of(std::size_t number) {
    static std::vector<void*> pool;
    while (pool.size() <= number) {
        pool.push_back(
            mmap(nullptr, stack_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
        if (pool.back() == MAP_FAILED) std::abort();
    }
    return pool[number];
}

void prepare(Fiber& fiber) {
    getcontext(&fiber.context);
    fiber.context.uc_stack.ss_sp = fiber.stack;
    fiber.context.uc_stack.ss_size = stack_bytes;
    fiber.context.uc_link = nullptr;
    makecontext(&fiber.context, begin_fiber, 0);
    fiber.entered = false;
    fiber.collectives = 0;
    fiber.fake_stack = nullptr;
    fiber.wait = Wait::nothing;
}

void start_block(Block& block, unsigned number, unsigned index, unsigned threads) {
    block.live = true;
    block.waiting = 0;
    block.left = threads;
    block.fibers.resize(threads);
    block.warps.assign(threads / warp_lanes, Warp{});
    block.shared.resize(static_cast<std::size_t>(__stop_cuda_shared - __start_cuda_shared));
    for (char& byte : block.shared) byte = static_cast<char>(chance());
    for (unsigned thread = 0; thread < threads; ++thread) {
        Fiber& fiber = block.fibers[thread];
        fiber.block = number;
        fiber.stack = stack_of(std::size_t{number} * threads + thread);
        fiber.place = {{thread, 0, 0}, {index, 0, 0}};
        prepare(fiber);
    }
}

unsigned nth(unsigned place, unsigned count) {
    switch (chosen.order) {
        case Order::forward: return place;
        case Order::reverse: return count - 1 - place;
        case Order::random: return static_cast<unsigned>(chance() % count);
    }
    return place;
}

// Lets the threads of a block run, each until it waits, until none can go on; false if none did more than
// wait.
bool run_block(Block& block) {
    const unsigned threads = static_cast<unsigned>(block.fibers.size());
    char* const shared = __start_cuda_shared;
    if (!block.shared.empty()) std::memcpy(shared, block.shared.data(), block.shared.size());
    bool moved = false;
    const auto turn = [&](Fiber& fiber) {
        if (fiber.wait != Wait::nothing || failed) return false;
        resume(fiber);
        moved |= fiber.wait != Wait::others;
        if (fiber.wait == Wait::ended) {
            --block.left;
            if (block.left && block.waiting == block.left) {  // CUDA: who has ended counts as having arrived
                for (Fiber& other : block.fibers)
                    if (other.wait == Wait::block) other.wait = Wait::nothing;
                block.waiting = 0;
            }
        }
        return true;
    };
    if (chosen.order == Order::random) {
        // A few turns only: then another block may have its share.
        for (unsigned turns = 0; turns < 4 * threads; ++turns) turn(block.fibers[nth(0, threads)]);
        for (Fiber& fiber : block.fibers)
            if (!moved) turn(fiber);
    } else {
        for (bool again = true; again && !failed;) {
            again = false;
            for (unsigned place = 0; place < threads; ++place)
                again |= turn(block.fibers[nth(place, threads)]);
        }
    }
    if (!block.shared.empty()) std::memcpy(block.shared.data(), shared, block.shared.size());
    block.live = block.left != 0;
    return moved;
}

void wake_sleepers() {
    for (Block& block : blocks)
        if (block.live)
            for (Fiber& fiber : block.fibers)
                if (fiber.wait == Wait::others) fiber.wait = Wait::nothing;
}

// Blocks start in the order of the schedule, a few at a time, and run by turns.
void run_all(unsigned grid, unsigned threads) {
    std::vector<unsigned> indices(grid);
    for (unsigned index = 0; index < grid; ++index) indices[index] = index;
    if (chosen.order == Order::reverse) std::reverse(indices.begin(), indices.end());
    if (chosen.order == Order::random) std::shuffle(indices.begin(), indices.end(), chance);
    const unsigned resident = grid < chosen.resident_blocks ? grid : chosen.resident_blocks;
    blocks.resize(resident);
    for (Block& block : blocks) block.live = false;
    std::size_t started = 0;
    for (unsigned idle = 0; !failed;) {
        bool moved = false;
        for (unsigned place = 0; place < resident && !failed; ++place) {
            const unsigned number = nth(place, resident);
            Block& block = blocks[number];
            if (!block.live) {
                if (started == grid) continue;
                start_block(block, number, indices[started++], threads);
            }
            moved |= run_block(block);
        }
        bool live = started < grid;
        for (const Block& block : blocks) live |= block.live;
        if (!live) return;
        idle = moved ? 0 : idle + 1;
        if (idle > 1000) {
            failure = "no thread of the kernel can go on: a barrier or a warp operation that not all reach";
            return;
        }
        wake_sleepers();
    }
}

}  // namespace

void wait_for_block() {
    Fiber& fiber = self();
    Block& block = blocks[fiber.block];
    if (++block.waiting < block.left) {
        fiber.wait = Wait::block;
        leave(fiber);
        return;
    }
    block.waiting = 0;
    for (Fiber& other : block.fibers)
        if (other.wait == Wait::block) other.wait = Wait::nothing;
}

const std::uint64_t* exchange(Operation operation, unsigned mask, std::uint64_t given) {
    if (mask != 0xFFFFFFFFu) fail("a warp operation of less than 32 lanes");
    Fiber& fiber = self();
    Block& block = blocks[fiber.block];
    const unsigned thread = fiber.place.thread_index.x;
    Warp& warp = block.warps[thread / warp_lanes];
    if (warp.arrived && warp.operation != operation) fail("the lanes of a warp are at different operations");
    warp.operation = operation;
    std::uint64_t* const values = warp.given[fiber.collectives++ % 2];
    values[thread % warp_lanes] = given;
    if (++warp.arrived < warp_lanes) {
        fiber.wait = Wait::warp;
        leave(fiber);
        return values;
    }
    warp.arrived = 0;
    for (unsigned lane = 0; lane < warp_lanes; ++lane) {
        Fiber& other = block.fibers[thread - thread % warp_lanes + lane];
        if (other.wait == Wait::warp) other.wait = Wait::nothing;
    }
    return values;
}

void give_way(bool waits) {
    if (!waits && chosen.order != Order::random) return;
    Fiber& fiber = self();
    fiber.wait = waits ? Wait::others : Wait::nothing;
    leave(fiber);
}

void fail(const char* sentence) {
    failure = sentence;
    failed = true;
    Fiber& fiber = self();
    leave(fiber);
    std::abort();
}

const char* run(const Kernel& kernel, unsigned grid, unsigned block, void** arguments, Schedule schedule) {
    static std::mutex one_at_a_time;
    const std::scoped_lock lock(one_at_a_time);
    failure.clear();
    failed = false;
    if (grid == 0 || block == 0 || block % warp_lanes || block > 1024) {
        failure = "a grid of no blocks, or a block that is not 1 to 32 whole warps";
        return failure.c_str();
    }
    chosen = schedule;
    chance.seed(schedule.seed);
    running = &kernel;
    running_arguments = arguments;
    launch = {{block, 1, 1}, {grid, 1, 1}};
    const Denormals flushed(true);
    run_all(grid, block);
    return failure.empty() ? nullptr : failure.c_str();
}

}  // namespace cuda_on_host
