"""What takes the hardware's place computes as it does, and finds faults that it hides on a good day."""

from __future__ import annotations

import platform
from typing import Any

import numpy as np
import pytest

from tests.gpu.backends import Backend, schedule

# One file, compiled once.
KERNELS = """
EXTERN neighbours_after_barrier(unsigned* out, unsigned step) {
    __shared__ unsigned values[128];
    values[threadIdx.x] = threadIdx.x + 100 * blockIdx.x;
    __syncthreads();
    out[blockIdx.x * 128 + threadIdx.x] = values[(threadIdx.x + step) % 128];
}
EXTERN neighbours_at_once(unsigned* out, unsigned step) {
    __shared__ unsigned values[128];
    values[threadIdx.x] = threadIdx.x + 100 * blockIdx.x;
    out[blockIdx.x * 128 + threadIdx.x] = values[(threadIdx.x + step) % 128];
}
EXTERN lanes_after_barrier(unsigned* out) {
    __shared__ unsigned values[128];
    values[threadIdx.x] = threadIdx.x;
    __syncwarp();
    out[threadIdx.x] = values[(threadIdx.x + 1) % 32 + threadIdx.x / 32 * 32];
}
EXTERN lanes_at_once(unsigned* out) {
    __shared__ unsigned values[128];
    values[threadIdx.x] = threadIdx.x;
    out[threadIdx.x] = values[(threadIdx.x + 1) % 32 + threadIdx.x / 32 * 32];
}
EXTERN garbage(unsigned* out) {
    __shared__ unsigned values[128];
    out[blockIdx.x * 128 + threadIdx.x] = values[threadIdx.x];
}
EXTERN warp_operations(unsigned* out) {
    const unsigned thread = threadIdx.x, lane = thread % 32;
    out[thread] = __shfl_up_sync(0xFFFFFFFFu, thread, 3u);
    out[128 + thread] = __shfl_down_sync(0xFFFFFFFFu, thread, 5u);
    out[256 + thread] = __shfl_sync(0xFFFFFFFFu, thread, 7);
    out[384 + thread] = __ballot_sync(0xFFFFFFFFu, lane % 3 == 0);
    out[512 + thread] = __shfl_down_sync(0xFFFFFFFFu, 1ull << 40 | thread, 1u) >> 40;
}
EXTERN some_lanes() {
    if (threadIdx.x % 32 < 16) __ballot_sync(0xFFFFFFFFu, 1);
}
EXTERN different_operations() {
    if (threadIdx.x % 2) {
        __ballot_sync(0xFFFFFFFFu, 1);
    } else {
        __shfl_sync(0xFFFFFFFFu, 1, 0);
    }
}
EXTERN half_a_warp() { __ballot_sync(0xFFFFu, 1); }
__device__ void one_after_the_other(volatile unsigned* done, unsigned number) {
    while (*done != number) __nanosleep(20);
    *done = number + 1;
}
EXTERN by_ticket(unsigned* done, unsigned* ticket) {
    if (threadIdx.x == 0) one_after_the_other(done, atomicAdd(ticket, 1u));
}
EXTERN by_block(unsigned* done) {
    if (threadIdx.x == 0) one_after_the_other(done, blockIdx.x);
}
EXTERN add_each(float* cells, float value) {
    if (threadIdx.x < 3) atomicAdd(cells + threadIdx.x, value);
}
EXTERN plain_and_exact(float* out, float a, float b) {
    out[0] = a + b;
    out[1] = a * b;
    out[2] = cuda_on_host::add(a, b);
    out[3] = cuda_on_host::multiply(a, b);
}
""".replace("EXTERN", 'extern "C" __global__ void')
ORDERS = ["forward", "reverse", "random"]
THREADS = 128


def launch(gpu: Backend, name: str, *values: Any, blocks: int = 1) -> None:
    """Run a kernel of these to its end."""
    module = gpu.cupy.RawModule(code=KERNELS, options=("--std=c++17", "--fmad=false"))
    module.get_function(name)((blocks,), (THREADS,), values)
    gpu.cupy.cuda.get_current_stream().synchronize()


def neighbours_found(gpu: Backend, name: str, *, step: int, order: str) -> bool:
    """Whether all threads of several blocks read what others have written."""
    out = gpu.cupy.zeros(5 * THREADS, np.uint32)
    with schedule(order, 3):
        launch(gpu, name, out, np.uint32(step), blocks=5)
    expected = [(thread + step) % THREADS + 100 * block for block in range(5) for thread in range(THREADS)]
    return bool(out.get().tolist() == expected)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("step", [1, 127])
def test_a_barrier_shows_what_the_other_threads_of_the_block_have_written(
    host_gpu: Backend, step: int, order: str
) -> None:
    assert neighbours_found(host_gpu, "neighbours_after_barrier", step=step, order=order)


@pytest.mark.parametrize("step", [1, 127])
def test_a_barrier_left_out_is_seen(host_gpu: Backend, step: int) -> None:
    assert not all(
        neighbours_found(host_gpu, "neighbours_at_once", step=step, order=order) for order in ORDERS
    )


def test_a_warps_threads_are_not_taken_to_be_in_step(host_gpu: Backend) -> None:
    """A value handed from lane to lane through shared memory needs __syncwarp."""
    found: dict[str, list[bool]] = {"lanes_after_barrier": [], "lanes_at_once": []}
    for name, right in found.items():
        for order in ORDERS:
            out = host_gpu.cupy.zeros(THREADS, np.uint32)
            with schedule(order, 3):
                launch(host_gpu, name, out)
            expected = [(thread + 1) % 32 + thread // 32 * 32 for thread in range(THREADS)]
            right.append(out.get().tolist() == expected)
    assert all(found["lanes_after_barrier"])
    assert not all(found["lanes_at_once"])


def test_shared_memory_begins_as_garbage(host_gpu: Backend) -> None:
    out = host_gpu.cupy.zeros(2 * THREADS, np.uint32)
    launch(host_gpu, "garbage", out, blocks=2)
    assert len(set(out.get().tolist())) > THREADS


@pytest.mark.parametrize("order", ORDERS)
def test_warp_operations_give_what_the_hardware_gives(host_gpu: Backend, order: str) -> None:
    """Of a lane whose partner would be outside of the warp: its own value."""
    out = host_gpu.cupy.zeros(5 * THREADS, np.uint32)
    with schedule(order, 9):
        launch(host_gpu, "warp_operations", out)
    up, down, index, ballot, wide = out.get().reshape(5, THREADS)
    thread = np.arange(THREADS)
    lane = thread % 32
    assert (up == np.where(lane >= 3, thread - 3, thread)).all()
    assert (down == np.where(lane < 27, thread + 5, thread)).all()
    assert (index == thread - lane + 7).all()
    assert (ballot == sum(1 << i for i in range(0, 32, 3))).all()
    assert (wide == 1).all()


STUCK = "no thread of the kernel can go on"


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("some_lanes", STUCK),
        ("different_operations", "lanes of a warp are at different operations"),
        ("half_a_warp", "less than 32 lanes"),
    ],
)
def test_a_warp_operation_that_not_all_lanes_reach_is_an_error(
    host_gpu: Backend, name: str, sentence: str
) -> None:
    with pytest.raises(RuntimeError, match=sentence):
        launch(host_gpu, name)


@pytest.mark.parametrize("order", ORDERS)
def test_blocks_that_wait_for_those_with_lower_tickets_all_come_to_an_end(
    host_gpu: Backend, order: str
) -> None:
    cells = host_gpu.cupy.zeros(2, np.uint32)
    with schedule(order, 1, blocks=3):
        launch(host_gpu, "by_ticket", cells[:1], cells[1:], blocks=20)
    assert cells.get().tolist() == [20, 20]


def test_blocks_that_wait_for_one_that_has_not_begun_are_an_error(host_gpu: Backend) -> None:
    with schedule("reverse", blocks=3), pytest.raises(RuntimeError, match=STUCK):
        launch(host_gpu, "by_block", host_gpu.cupy.zeros(1, np.uint32), blocks=20)


def test_float_atomics_flush_denormals_as_the_hardware_does(host_gpu: Backend) -> None:
    cells = host_gpu.cupy.asarray(np.array([2.0**-127, 2.0**-126, 1.0], np.float32))
    launch(host_gpu, "add_each", cells, np.float32(-(2.0**-128)))
    assert cells.get().tolist() == [0.0, 2.0**-126, 1.0]


@pytest.mark.skipif(platform.machine() != "x86_64", reason="other processors are not made to flush")
def test_arithmetic_flushes_denormals_as_cupy_compiles_it_but_for_what_keeps_them(host_gpu: Backend) -> None:
    for a, b in ((2.0**-140, 2.0**-140), (2.0**-126, -(2.0**-127)), (2.0**-100, 2.0**-40), (3.0, 0.3)):
        out = host_gpu.cupy.zeros(4, np.float32)
        launch(host_gpu, "plain_and_exact", out, np.float32(a), np.float32(b))
        exact = [np.float32(a) + np.float32(b), np.float32(a) * np.float32(b)]
        assert out.get()[2:].tolist() == exact
        tiny = np.finfo(np.float32).tiny
        flushed = [float(np.float32(0 if abs(one) < tiny else one)) for one in (a, b)]
        plain = [np.float32(flushed[0] + flushed[1]), np.float32(flushed[0] * flushed[1])]
        assert out.get()[:2].tolist() == [0 if abs(one) < tiny else one for one in plain]


def test_arguments_of_another_kind_or_size_are_refused(host_gpu: Backend) -> None:
    with pytest.raises(ValueError, match=r"arguments of \[8, 8\] bytes, it takes \[8, 4\]"):
        launch(host_gpu, "add_each", host_gpu.cupy.zeros(3, np.float32), 7)
    with pytest.raises(TypeError, match="Unsupported type"):
        launch(host_gpu, "garbage", np.zeros(4, np.uint32))
