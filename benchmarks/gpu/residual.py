"""The residual pass, against the device's copy, and against the pass written with CuPy and with PyTorch."""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks import Figure, checksum
from benchmarks.gpu import Clock, torch_on_device
from benchmarks.residual import DEVIATION, THRESHOLD
from p2psgd.wire import codec
from tests.gpu.backends import Backend

SHARE = 850  # one in so many is sent
TARGET_US = 60.0  # 14.6 M weights on an H200
TARGET_OF_COPY = 0.85


def pass_in_cupy(cupy: Any, source: Any, delta: Any, target: Any) -> Any:
    """Make the same pass in the fewest CuPy calls known to us; returns the words."""
    cupy.add(source, delta, out=target)
    if not bool(cupy.isfinite(target).all()):
        raise ValueError("a sum is not finite")
    indices = cupy.flatnonzero(cupy.abs(target) > THRESHOLD)
    negative = target[indices] < 0
    target[indices] += cupy.where(negative, np.float32(THRESHOLD), np.float32(-THRESHOLD))
    return (indices << 1).astype(np.uint32) + negative


def pass_in_torch(torch: Any, source: Any, delta: Any, target: Any) -> Any:
    """Make the same pass in PyTorch."""
    torch.add(source, delta, out=target)
    if not bool(torch.isfinite(target).all()):
        raise ValueError("a sum is not finite")
    indices = (target.abs() > THRESHOLD).nonzero().squeeze(1)
    negative = target[indices] < 0
    target[indices] += torch.where(negative, THRESHOLD, -THRESHOLD)
    return (indices << 1 | negative).to(torch.int64)


def run(gpu: Backend, *, large: bool) -> list[Figure]:
    """14.6 M and 10^8 weights, about 1/850 of them sent."""
    cupy, clock = gpu.cupy, Clock(gpu, large=large)
    figures = []
    for weights in (14_600_000, 10**8) if large else (50_000,):
        chance = np.random.default_rng(SHARE)
        source, values = (
            chance.standard_normal(weights, np.float32) * np.float32(DEVIATION) for _ in range(2)
        )
        figures += of_size(gpu, clock, cupy.asarray(source), values)
    return figures


def of_size(gpu: Backend, clock: Clock, source: Any, values: Any) -> list[Figure]:
    cupy, weights = gpu.cupy, source.size
    kernels = gpu.load("kernels").Kernels()
    room = weights // 200
    state = kernels.make_state(weights, 1)
    groups = [gpu.load("pass_state").PassGroup(THRESHOLD, ((0, weights),), room)]
    target, words = cupy.empty(weights, np.float32), cupy.empty(room, np.uint32)
    delta = cupy.asarray(values)

    def sweep(of: Any) -> None:
        kernels.residual_pass(source, of, target, words, state, groups)

    expected, expected_words = np.empty(weights, np.float32), np.empty(room, np.uint32)
    host_source = source.get()
    count, _ = codec.residual_pass(host_source, values, expected, expected_words, threshold=THRESHOLD)
    sweep(delta)
    assert state.read().counts == ((count,),)
    assert target.get().tobytes() == expected.tobytes()
    assert words.get()[:count].tobytes() == expected_words[:count].tobytes()

    copy = clock.microseconds(lambda: cupy.copyto(target, source))
    times = {"float32": clock.microseconds(lambda: sweep(delta), state.read)}
    half, brain = values.astype(np.float16), (values.view(np.uint32) >> 16).astype(np.uint16)
    for name, narrow in (("float16", cupy.asarray(half)), ("bfloat16", cupy.asarray(brain))):
        times[name] = clock.microseconds(lambda of=narrow: sweep(of), state.read)  # type: ignore[misc]
    others = {"CuPy": clock.microseconds(lambda: pass_in_cupy(cupy, source, delta, target))}
    if (torch := torch_on_device(gpu)) is not None:
        tensors = [torch.from_numpy(array).cuda() for array in (host_source, values, expected)]
        torch.cuda.synchronize()
        stream = torch.cuda.ExternalStream(cupy.cuda.get_current_stream().ptr)
        with torch.cuda.stream(stream):
            others["PyTorch"] = clock.microseconds(lambda: pass_in_torch(torch, *tensors))

    bandwidth = 8 * weights / copy / 1e3  # GB/s, read and written
    own = 12 * weights / times["float32"] / 1e3
    size = f"{weights / 1e6:.3g} M weights"
    target_us = f"target {TARGET_US:.0f} on an H200; " if weights < 10**8 else ""
    return [
        Figure(
            f"pass, {size}",
            times["float32"],
            "us",
            f"{target_us}{count} sent; {checksum(expected.tobytes())}",
        ),
        Figure(
            "bandwidth to the copy's",
            own / bandwidth,
            "times",
            f"target {TARGET_OF_COPY}; {own:.0f} GB/s, copy {bandwidth:.0f}",
        ),
        *(Figure(f"pass with {name}", times[name], "us") for name in ("float16", "bfloat16")),
        *(
            Figure(f"time of {name} to the pass", time / times["float32"], "times", "target 10")
            for name, time in others.items()
        ),
    ]
