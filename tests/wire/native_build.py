"""Compiling the native core outside of its module, by the compiler and the flags of CMakeLists.txt."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from p2psgd.wire.cpu_paths import cpu_paths

ROOT = Path(__file__).parents[2]
CORE = ROOT / "p2psgd" / "wire" / "native"
COMPILER = os.environ.get("CXX", "c++")
JOBS_MAX = 2  # each takes some hundred MB with sanitizers
LANGUAGE = ("-std=c++20", "-ffp-contract=off", "-fno-math-errno", "-Wall", "-Wextra")
SANITIZERS = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all")


def path_flags() -> dict[str, list[str]]:
    """The instruction flags of each path of this build, by the name of its namespace."""
    lines = (ROOT / "CMakeLists.txt").read_text(encoding="utf-8")
    variables = dict(re.findall(r"set\((\w+) (-m[^)]*)\)", lines))
    flags = {
        name: re.sub(r"\$\{(\w+)\}", lambda use: variables[use[1]], rest).split()
        for name, rest in re.findall(r"add_path\((\w+)([^)]*)\)", lines)
    }
    here = [path.name.replace("+", "_") for path in cpu_paths()]
    return {name: flags[name] for name in here}


def compile_kernels(folder: Path, flags: Sequence[str], paths: Iterable[str] | None = None) -> list[Path]:
    """Every source of kernels/ as an object file for each of these paths, by default all of this build."""
    by_path = path_flags()
    return compile_all(
        {
            folder / f"{name}-{source.stem}.o": [*flags, *by_path[name], f"-DP2PSGD_PATH={name}", str(source)]
            for name in (by_path if paths is None else paths)
            for source in sorted((CORE / "kernels").glob("*.cpp"))
        }
    )


def build_program(folder: Path, sources: Sequence[Path], flags: Sequence[str]) -> list[Path]:
    """A program of each source with the whole core: the kernels of all paths, and the choice between them."""
    with_avx2 = ["-DP2PSGD_AVX2"] if len(path_flags()) > 1 else []
    core = [source for source in sorted(CORE.glob("*.cpp")) if source.stem != "module"]
    objects = compile_all(
        {folder / f"{source.stem}.o": [*flags, *with_avx2, str(source)] for source in (*sources, *core)}
    )
    mains, rest = objects[: len(sources)], objects[len(sources) :] + compile_kernels(folder, flags)
    for main in mains:
        subprocess.run([COMPILER, *flags, main, *rest, "-o", main.with_suffix("")], check=True)
    return [main.with_suffix("") for main in mains]


def compile_all(commands: dict[Path, list[str]]) -> list[Path]:
    """Compile each object file by its arguments, JOBS_MAX at a time."""

    def compile_one(item: tuple[Path, list[str]]) -> Path:
        target, arguments = item
        run = subprocess.run(
            [COMPILER, *LANGUAGE, f"-I{CORE}", *arguments, "-c", "-o", str(target)],
            capture_output=True,
            text=True,
            check=False,
        )
        assert run.returncode == 0, run.stderr
        return target

    with ThreadPoolExecutor(JOBS_MAX) as pool:
        return list(pool.map(compile_one, commands.items()))


def why_no_compiler(folder: Path, flags: Sequence[str] = ()) -> str | None:
    """Why nothing can be compiled and linked with these flags here, None if it can."""
    if shutil.which(COMPILER) is None:
        return f"needs the C++ compiler {COMPILER}"
    probe = folder / "probe.cpp"
    probe.write_text("int main() {}\n")
    command = [COMPILER, *flags, str(probe), "-o", str(folder / "probe")]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        return f"{COMPILER} cannot build with {' '.join(flags)} here"
    return None
