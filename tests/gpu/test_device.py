"""Which device a word means here, and one sentence where it cannot be had."""

from __future__ import annotations

import importlib
import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from p2psgd.base.errors import ExitCode, TrainerError, UsageError
from p2psgd.gpu.device import find_device
from p2psgd.recipes.gradients import HOST
from p2psgd.recipes.main import train
from p2psgd.recipes.recipe import load_recipe
from tests.daemons import P2PSGD
from tests.gpu.backends import STAND_IN, Backend
from tests.gpu.links import loop_factory, start_daemon
from tests.ipc.daemons import StartDaemon

__all__ = ["loop_factory", "start_daemon"]  # fixtures


@pytest.fixture
def without_cupy(monkeypatch: pytest.MonkeyPatch) -> None:
    find_spec = importlib.util.find_spec
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "cupy" else find_spec(name))


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """What is there where an NVIDIA driver is loaded; it is not, until a test makes it."""
    path = tmp_path / "version"
    monkeypatch.setattr(importlib.import_module("p2psgd.gpu.device"), "DRIVER", path)
    return path


def find_backend(word: str) -> Any:
    return importlib.import_module("p2psgd.gpu").find_backend(word)


@pytest.mark.parametrize("word", ["gpu", "cuda:", "cuda:-1", "cuda:1234", "CUDA", "cuda:0 ", "auto:1", ""])
def test_a_word_that_is_none_is_refused_with_those_that_are(word: str) -> None:
    with pytest.raises(UsageError, match="is not known: give auto, cpu, cuda or cuda:N"):
        find_device(word)


def test_words_name_devices(host_gpu: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_ON_HOST_DEVICES", "2")
    words = {"auto": 0, "cuda": 0, "cuda:0": 0, "cuda:1": 1, "cpu": None}
    assert {word: find_device(word) for word in words} == words
    with pytest.raises(UsageError, match="device cuda:2: there is none, this machine has cuda:0 to cuda:1"):
        find_device("cuda:2")
    assert importlib.import_module("p2psgd.gpu").available()


def test_where_cupy_is_not_installed_a_sentence_says_what_to_install(without_cupy: None) -> None:
    assert find_device("cpu") is None
    with pytest.raises(
        UsageError,
        match=r"device cuda:0: .*CuPy is not installed: pip install '\.\[gpu\]' in a checkout, .*; or give",
    ) as refusal:
        find_device("cuda:0")
    assert refusal.value.exit_code is ExitCode.CONFIGURATION
    assert not importlib.import_module("p2psgd.gpu").available()


def test_where_cupy_finds_no_driver_the_sentence_is_cudas(
    host_gpu: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_ON_HOST_DEVICES", "0")
    with pytest.raises(
        UsageError, match=r"CuPy finds no CUDA device \(cudaErrorNoDevice: .*\): install or update the NVIDIA"
    ):
        find_device("cuda")


def test_a_cupy_that_cannot_be_imported_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, host_gpu: Backend
) -> None:
    (tmp_path / "cupy.py").write_text('raise ImportError("\\n====\\nlibcuda.so.1 is missing\\nand more")\n')
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "cupy")
    with pytest.raises(UsageError, match=r"CuPy cannot be imported \(libcuda.so.1 is missing\): pip install"):
        find_device("cuda:0")


def test_auto_is_the_cpu_without_a_word_where_nothing_suggests_a_gpu(
    without_cupy: None, driver: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert find_backend("auto") is HOST
    assert not capsys.readouterr().err


def test_auto_says_why_it_is_the_cpu_where_a_driver_or_cupy_is_there(
    driver: Path,
    without_cupy: None,
    capsys: pytest.CaptureFixture[str],
) -> None:
    driver.touch()
    assert find_backend("auto") is HOST
    assert "p2psgd: trains on the CPU: CuPy is not installed: pip install" in capsys.readouterr().err
    assert find_backend("cpu") is HOST
    assert not capsys.readouterr().err


def test_auto_says_so_too_where_cupy_finds_no_device(
    host_gpu: Backend,
    driver: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("CUDA_ON_HOST_DEVICES", "0")
    assert find_backend("auto") is HOST
    assert "trains on the CPU: CuPy finds no CUDA device (cudaErrorNoDevice" in capsys.readouterr().err


def test_a_device_that_fails_at_once_is_a_sentence_and_auto_does_without(
    host_gpu: Backend, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("cudaErrorMemoryAllocation: no room\nand more")

    monkeypatch.setattr(host_gpu.cupy, "zeros", fail)
    with pytest.raises(
        UsageError, match="device cuda:0 cannot be used: cudaErrorMemoryAllocation: no room; or"
    ):
        find_backend("cuda:0")
    assert find_backend("auto") is HOST
    assert "trains on the CPU: cuda:0 cannot be used: cudaErrorMemoryAll" in capsys.readouterr().err


def test_a_device_too_old_for_the_kernels_is_a_sentence_and_auto_does_without(
    host_gpu: Backend, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(host_gpu.cupy.cuda.Device, "compute_capability", "61")
    with pytest.raises(
        UsageError,
        match=r"device cuda:0 cannot be used: its compute capability is 6\.1, and the kernels need 7\.0 or",
    ):
        find_backend("cuda:0")
    assert find_backend("auto") is HOST
    assert "trains on the CPU: cuda:0 cannot be used: its compute capability" in capsys.readouterr().err
    for word in ("70", "100", "120"):
        monkeypatch.setattr(host_gpu.cupy.cuda.Device, "compute_capability", word)
        assert find_backend("cuda:0").name.startswith("cuda:0, ")


def test_kernels_that_do_not_compile_are_told_before_anything_starts(
    host_gpu: Backend, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("NVRTC_ERROR_BUILTIN_OPERATION_FAILURE")

    monkeypatch.setattr(host_gpu.cupy.RawModule, "get_function", fail)
    with pytest.raises(UsageError, match="device cuda:0 cannot be used: NVRTC_ERROR_BUILTIN"):
        find_backend("cuda:0")
    assert find_backend("auto") is HOST
    assert "cannot be used: NVRTC_ERROR" in capsys.readouterr().err


def test_what_a_training_has_no_memory_for_is_one_sentence(
    host_gpu: Backend, monkeypatch: pytest.MonkeyPatch, start_daemon: StartDaemon
) -> None:
    def fail(*_: object) -> None:
        raise MemoryError("Out of memory allocating 9 bytes")

    backend = find_backend("cuda:0")
    monkeypatch.setattr(type(backend), "feed", fail)
    monkeypatch.setenv("P2PSGD_CONTROL", str(start_daemon().path))
    with pytest.raises(
        TrainerError, match=r"cuda:0, .* has not enough memory to train recipe digits: Out of memory alloc"
    ):
        train(load_recipe("digits"), (0, 1), 5, backend=backend)


@pytest.mark.parametrize("command", [("train",), ("local", "-n", "2")])
def test_commands_refuse_a_device_that_is_not_there_before_anything_starts(
    command: tuple[str, ...], tmp_path: Path
) -> None:
    environment = {**os.environ, "PYTHONPATH": str(STAND_IN)}
    there_is_none = "p2psgd: device cuda:7: there is none, this machine has cuda:0\n"
    unknown = "p2psgd: --device 'gpu' is not known: give auto, cpu, cuda or cuda:N\n"
    for word, code, sentence in (
        ("cuda:7", ExitCode.CONFIGURATION, there_is_none),
        ("gpu", ExitCode.USAGE, unknown),
    ):
        ended = subprocess.run(
            [*P2PSGD, *command, "--recipe", "digits", "--device", word],
            env=environment,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
        assert (ended.returncode, ended.stderr) == (code, sentence)
    assert not list(tmp_path.iterdir())
