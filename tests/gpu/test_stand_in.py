"""The stand-in for CuPy refuses what CuPy refuses, and does late what a device might do late."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.gpu.backends import Backend


def copy_later(cupy: Any, stream: Any, target: Any, value: float) -> None:
    """Order a copy of a number to the device onto a stream."""
    source = cupy.asarray(np.full(target.size, value, np.float32))
    cupy.cuda.runtime.memcpyAsync(
        target.data.ptr, source.data.ptr, source.nbytes, cupy.cuda.runtime.memcpyDeviceToDevice, stream.ptr
    )
    stream.keep = source  # alive until it is copied


def test_arrays_of_host_and_device_do_not_mix(host_gpu: Backend) -> None:
    cupy = host_gpu.cupy
    here, there = np.ones(3, np.float32), cupy.asarray(np.ones(3, np.float32))
    for mixed in (
        lambda: there + here,
        lambda: here + there,
        lambda: cupy.add(there, here),
        lambda: np.asarray(there),
        lambda: there.__setitem__(slice(None), here),
        lambda: there.set(there),
        lambda: cupy.cuda.alloc_pinned_memory(4) + there,
    ):
        with pytest.raises(TypeError):
            mixed()
    assert (there + 2).get().tolist() == [3, 3, 3]
    assert (cupy.asnumpy(there) + here).tolist() == [2, 2, 2]


def test_numbers_stay_on_the_device_until_they_are_asked_for(host_gpu: Backend) -> None:
    total = host_gpu.cupy.asarray(np.arange(4, dtype=np.float32)).sum()
    assert isinstance(total, host_gpu.cupy.ndarray)
    assert float(total) == 6.0


def test_pinned_memory_is_read_when_it_is_copied(host_gpu: Backend) -> None:
    """A view of an array is no work for the device, and brings nothing about."""
    cupy = host_gpu.cupy
    array = cupy.zeros(4, np.float32)
    pinned = np.frombuffer(cupy.cuda.alloc_pinned_memory(16), np.float32, 4)
    plain = np.ones(4, np.float32)
    pinned[:] = 1
    array.set(pinned)
    assert array[1:3].view(np.uint32).reshape(1, 2).shape == (1, 2)
    pinned[:] = 2
    assert array.get().tolist() == [2, 2, 2, 2]
    array.set(plain)
    plain[:] = 3
    assert array.get().tolist() == [1, 1, 1, 1]
    assert array[0].get() == 1


def test_fresh_memory_is_garbage(host_gpu: Backend) -> None:
    assert host_gpu.cupy.empty(1000, np.uint8).get().any()


def test_another_stream_works_as_late_as_it_may(host_gpu: Backend) -> None:
    cupy = host_gpu.cupy
    array = cupy.zeros(2, np.float32)
    stream = cupy.cuda.Stream(non_blocking=True)
    copy_later(cupy, stream, array, 7.0)
    assert array.get().tolist() == [0, 0]
    stream.synchronize()
    assert array.get().tolist() == [7, 7]


def test_it_works_at_once_if_that_is_asked_for_and_waits_for_events_all_the_same(
    host_gpu: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_ON_HOST_STREAMS", "eager")
    cupy = host_gpu.cupy
    array = cupy.zeros(2, np.float32)
    five, seven = (cupy.asarray(np.full(2, value, np.float32)) for value in (5, 7))
    current, stream = cupy.cuda.get_current_stream(), cupy.cuda.Stream(non_blocking=True)
    kind = cupy.cuda.runtime.memcpyDeviceToDevice
    for waits, expected in ((False, 5), (True, 7)):
        cupy.cuda.runtime.memcpyAsync(array.data.ptr, five.data.ptr, 8, kind, current.ptr)
        if waits:
            stream.wait_event(current.record())
        cupy.cuda.runtime.memcpyAsync(array.data.ptr, seven.data.ptr, 8, kind, stream.ptr)
        assert array.get().tolist() == [expected, expected]


def test_an_event_that_is_waited_for_orders_two_streams(host_gpu: Backend) -> None:
    cupy = host_gpu.cupy
    array = cupy.zeros(2, np.float32)
    stream = cupy.cuda.Stream(non_blocking=True)
    event = cupy.cuda.Event(disable_timing=True)
    copy_later(cupy, stream, array, 7.0)
    event.record(stream)
    copy_later(cupy, stream, array, 8.0)
    assert not event.done
    cupy.cuda.get_current_stream().wait_event(event)
    assert array.get().tolist() == [7, 7]  # not what came after the event
    assert event.done
    cupy.cuda.Device().synchronize()
    assert array.get().tolist() == [8, 8]


def test_inside_a_with_the_stream_is_the_current_one(host_gpu: Backend) -> None:
    cupy = host_gpu.cupy
    array = cupy.zeros(2, np.float32)
    stream = cupy.cuda.Stream(non_blocking=True)
    copy_later(cupy, stream, array, 7.0)
    with stream:
        assert cupy.cuda.get_current_stream() is stream
        array += 1
    assert cupy.cuda.get_current_stream() is not stream
    assert array.get().tolist() == [8, 8]


def test_memory_of_somebody_else_is_written_where_it_is(host_gpu: Backend) -> None:
    cuda = host_gpu.cupy.cuda
    pinned = cuda.alloc_pinned_memory(64)
    memory = cuda.UnownedMemory(pinned.ptr, 64, pinned)
    there = host_gpu.cupy.ndarray((4,), np.float32, cuda.MemoryPointer(memory, 16))
    there.fill(3)
    assert np.frombuffer(pinned, np.float32, 16)[4:8].tolist() == [3, 3, 3, 3]
    with pytest.raises(ValueError, match="ends behind its memory"):
        host_gpu.cupy.ndarray((16,), np.float32, cuda.MemoryPointer(memory, 16))


def test_a_machine_may_be_without_a_device_or_without_pinned_memory(
    host_gpu: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    cuda = host_gpu.cupy.cuda
    monkeypatch.setenv("CUDA_ON_HOST_REFUSE_PINNING", "1")
    with pytest.raises(cuda.runtime.CUDARuntimeError):
        cuda.alloc_pinned_memory(8)
    monkeypatch.setenv("CUDA_ON_HOST_DEVICES", "0")
    with pytest.raises(cuda.runtime.CUDARuntimeError):
        cuda.runtime.getDeviceCount()


def test_cupys_own_arithmetic_flushes_denormals(host_gpu: Backend) -> None:
    """And nothing else does."""
    cupy = host_gpu.cupy
    small = cupy.asarray(np.array([1e-39, 1e-20, -1e-39, 2e-38], np.float32))
    assert (small + small).get().tolist() == [0, np.float32(2e-20), 0, np.float32(4e-38)]
    assert cupy.multiply(small, np.float32(0.25)).get().tolist() == [0, np.float32(2.5e-21), 0, 0]
    assert np.count_nonzero(small.get()) == 4
    small *= np.float32(1)
    assert np.count_nonzero(small.get()) == 2
    assert np.float32(1e-39) + np.float32(1e-39) > 0


def test_bits_that_would_not_be_the_hosts_are_refused(host_gpu: Backend) -> None:
    module = host_gpu.cupy.RawModule(code="", options=("--std=c++17", "--use_fast_math"))
    with pytest.raises(ValueError, match="the bits are not those of the host"):
        module.get_function("any")
