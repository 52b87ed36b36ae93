"""Compiling the native core outside of its module, by the compiler and the flags of CMakeLists.txt."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterable, Mapping, Sequence
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


def compile_kernels(
    folder: Path, flags: Sequence[str], paths: Iterable[str] | None = None, *, compiler: str = COMPILER
) -> list[Path]:
    """Every source of kernels/ as an object file for each of these paths, by default all of this build."""
    by_path = path_flags()
    return compile_all(
        {
            folder / f"{name}-{source.stem}.o": [*flags, *by_path[name], f"-DP2PSGD_PATH={name}", str(source)]
            for name in (by_path if paths is None else paths)
            for source in sorted((CORE / "kernels").glob("*.cpp"))
        },
        compiler=compiler,
    )


def build_programs(
    folder: Path,
    programs: Mapping[str, Sequence[Path]],
    flags: Sequence[str],
    *,
    link_flags: Sequence[str] = (),
    compiler: str = COMPILER,
) -> dict[str, Path]:
    """Programs of these sources, by name, each with the whole core: all paths and the choice of one."""
    core = [source for source in sorted(CORE.glob("*.cpp")) if source.stem != "module"]
    with_avx2 = ["-DP2PSGD_AVX2"] if len(path_flags()) > 1 else []
    own = {folder / f"{source.stem}.o": source for sources in programs.values() for source in sources}
    own |= {folder / f"core-{source.stem}.o": source for source in core}
    compile_all(
        {target: [*flags, *with_avx2, str(source)] for target, source in own.items()}, compiler=compiler
    )
    rest = [*folder.glob("core-*.o"), *compile_kernels(folder, flags, compiler=compiler)]
    built = {}
    for name, sources in programs.items():
        built[name] = folder / name
        objects = [folder / f"{source.stem}.o" for source in sources]
        subprocess.run([compiler, *flags, *link_flags, *objects, *rest, "-o", built[name]], check=True)
    return built


def compile_all(commands: Mapping[Path, list[str]], *, compiler: str = COMPILER) -> list[Path]:
    """Compile each object file by its arguments, JOBS_MAX at a time."""

    def compile_one(item: tuple[Path, list[str]]) -> Path:
        target, arguments = item
        run = subprocess.run(
            [compiler, *LANGUAGE, f"-I{CORE}", *arguments, "-c", "-o", str(target)],
            capture_output=True,
            text=True,
            check=False,
        )
        assert run.returncode == 0, run.stderr
        return target

    with ThreadPoolExecutor(JOBS_MAX) as pool:
        return list(pool.map(compile_one, commands.items()))


def why_no_compiler(folder: Path, flags: Sequence[str] = (), *, compiler: str = COMPILER) -> str | None:
    """Why nothing can be compiled and linked with these flags here, None if it can."""
    if shutil.which(compiler) is None:
        return f"needs the C++ compiler {compiler}"
    probe = folder / "probe.cpp"
    probe.write_text("int main() {}\n")
    command = [compiler, *flags, str(probe), "-o", str(folder / "probe")]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        return f"{compiler} cannot build with {' '.join(flags)} here"
    return None
