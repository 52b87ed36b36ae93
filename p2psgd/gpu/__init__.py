"""Train on an NVIDIA GPU: weights and residual on the device, with CuPy in the place of numpy.

A training script attaches by `p2psgd.gpu.attach`, and its arrays are CuPy's; everything else is as with
`p2psgd.attach`. No other package imports CuPy, and this one does so only when a device is asked for.
"""

from __future__ import annotations

import math
import os
import signal
import sys
import threading
from collections.abc import Mapping
from types import FrameType, ModuleType, TracebackType
from typing import TYPE_CHECKING, Any, Final, NoReturn

from p2psgd.base.errors import ExitCode, TrainerError, UsageError
from p2psgd.base.formatting import say
from p2psgd.base.interruption import ignore
from p2psgd.gpu.device import AUTO, available, find_device, first_line, why_not

if TYPE_CHECKING:
    from p2psgd.client.link import Link
    from p2psgd.recipes.gradients import Backend

__all__ = ["attach", "available", "find_backend"]

CAPABILITY_MIN: Final = 70  # lanes that wait for each other within a warp, as the residual kernel has them
COPY_S: Final = 60.0  # between copies of the residual
COPY_VARIABLE: Final = "P2PSGD_RESIDUAL_COPY_S"


def attach(
    initial: Any = None, *, device: str = "cuda:0", residual_copy_s: float | None = None, **options: Any
) -> Link:
    """Attach this process to the daemon of its node, with weights and residual on a device.

    The link's `weights`, `tensors`, `residual` and `proposed` are CuPy arrays, and `send` accepts one;
    `allreduce` accepts and returns numpy arrays. Use a with block, so that the residual is copied back when
    the link is closed. A daemon stops its trainer by SIGTERM: on the main thread of a script without a
    handler of its own it raises SystemExit(143) from now on, which leaves the with block.

    Args:
        initial: As for `p2psgd.attach`; arrays may be CuPy's too.
        device: "cuda:0" and so on; it becomes the current device. "auto" uses the CPU, and numpy arrays,
            where there is no CUDA device. Default: "cuda:0".
        residual_copy_s: Seconds between copies of the residual to the daemon's memory, from which the next
            trainer continues if this process crashes. Default: $P2PSGD_RESIDUAL_COPY_S, else 60.
        **options: Options of `p2psgd.attach`.

    Returns:
        The link, whose arrays are on the device.

    Raises:
        TrainerError: as from `p2psgd.attach`, or there is no such device. A script that does not catch the
            latter exits with 78 and the sentence, so that it is not started again.

    Example:
        ```python
        with p2psgd.gpu.attach(np.zeros(100, np.float32), device="cuda:0") as link:
            link.receive()
        ```
    """
    from p2psgd.client.attach import attach as attach_anywhere

    try:
        backend = find_backend(device, residual_copy_s=residual_copy_s)
    except UsageError as error:
        raise _for_good(TrainerError(str(error))) from None
    link = attach_anywhere(_on_host(initial, backend.xp), make_compute=backend.make_compute, **options)
    if backend.name:
        _leave_by_sigterm()
    return link


def find_backend(device: str, *, residual_copy_s: float | None = None) -> Backend:
    """Return the backend of a trainer on this device, which becomes the current one.

    Where "auto" comes out as the CPU and a GPU seems to be there, standard error says why. UsageError if
    there is no such device.
    """
    from p2psgd.recipes.gradients import HOST

    copy_s = _copy_s(residual_copy_s)
    index = find_device(device)
    if index is None:
        reason = why_not(device)
        if reason:
            say(reason)
        return HOST
    import cupy

    from p2psgd.gpu.backend import DeviceBackend

    try:
        there = cupy.cuda.Device(index)
        capability = int(there.compute_capability)  # 75 is 7.5
        if capability < CAPABILITY_MIN:
            raise RuntimeError(
                f"its compute capability is {capability / 10:.1f}, and the kernels need"
                f" {CAPABILITY_MIN / 10:.1f} or more"
            )
        there.use()
        cupy.zeros(1).fill(1)  # the first thing that must run there
        return DeviceBackend(copy_s=copy_s)
    except Exception as error:  # of the driver, the compiler or CuPy
        words = f"cannot be used: {first_line(error)}"
        if device == AUTO:
            say(f"trains on the CPU: cuda:{index} {words}")
            return HOST
        raise UsageError(f"device {device} {words}; or give device cpu", ExitCode.CONFIGURATION) from None


def _for_good(error: TrainerError) -> TrainerError:
    """Make an uncaught error end the process like a command's, unless the script has a hook."""

    def hook(kind: type[BaseException], value: BaseException, trace: TracebackType | None) -> None:
        if value is not error:
            sys.__excepthook__(kind, value, trace)
            return
        say(str(error))
        sys.exit(ExitCode.CONFIGURATION)

    if sys.excepthook is sys.__excepthook__:
        sys.excepthook = hook
    return error


def _leave_by_sigterm() -> None:
    """Make SIGTERM leave the open with blocks and close their links, unless the script handles it."""
    on_main = threading.current_thread() is threading.main_thread()
    if on_main and signal.getsignal(signal.SIGTERM) in (signal.SIG_DFL, ignore):
        signal.signal(signal.SIGTERM, _exit)


def _exit(number: int, frame: FrameType | None) -> NoReturn:
    signal.signal(signal.SIGTERM, ignore)  # it may come twice for one stop; SIGKILL comes last
    sys.exit(128 + number)


def _copy_s(given: float | None) -> float:
    if given is None:
        word = os.environ.get(COPY_VARIABLE, "")
        try:
            given = float(word) if word else COPY_S
        except ValueError:
            given = math.nan
        what = f"{COPY_VARIABLE}={word}"
    else:
        what = f"residual_copy_s = {given}"
    if not given >= 0:
        raise UsageError(
            f"{what} is refused: it must be a number of seconds, 0 or more", ExitCode.CONFIGURATION
        )
    return given


def _on_host(initial: Any, xp: ModuleType) -> Any:
    """Return arrays of this module as numpy arrays; return anything else unchanged."""
    if isinstance(initial, Mapping):
        return {name: _on_host(tensor, xp) for name, tensor in initial.items()}
    return xp.asnumpy(initial) if hasattr(xp, "asnumpy") and isinstance(initial, xp.ndarray) else initial
