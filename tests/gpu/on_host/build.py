"""A shared library of the kernels of one .cu file, made by the host's C++ compiler and kept under build/.

Only the standard library: the stand-in for CuPy uses it, in whatever process that is.
"""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

HERE = Path(__file__).parent
CACHE = HERE.parents[2] / "build" / "cuda_on_host"
COMPILER = os.environ.get("CXX", "c++")
FLAGS = (
    *("-std=c++20", "-ffp-contract=off", "-fno-strict-aliasing", "-Wall", "-Wextra"),
    # An access that is not aligned to its type ends the process here, as it ends the kernel on a device.
    *("-fsanitize=alignment", "-fsanitize-undefined-trap-on-error"),
    *("-Wno-unknown-pragmas", "-Wno-parentheses", "-Wno-unused-function"),
)

_LIBRARY = """
#include <cstring>
namespace {{
constexpr cuda_on_host::Kernel kernels[] = {{{kernels}}};
const cuda_on_host::Kernel* find(const char* name) {{
    for (const auto& kernel : kernels)
        if (!std::strcmp(kernel.name, name)) return &kernel;
    return nullptr;
}}
}}
// The bytes of a kernel's arguments; how many they are, or -1 if there is no such kernel.
extern "C" int arguments_of(const char* name, std::size_t* bytes) {{
    const auto* kernel = find(name);
    if (!kernel) return -1;
    for (std::size_t i = 0; i < kernel->arguments; ++i) bytes[i] = kernel->argument_bytes[i];
    return static_cast<int>(kernel->arguments);
}}
extern "C" const char* launch_kernel(const char* name, unsigned grid, unsigned block, void** arguments,
                                     unsigned order, unsigned long long seed, unsigned resident_blocks) {{
    return cuda_on_host::run(*find(name), grid, block, arguments,
                             {{static_cast<cuda_on_host::Order>(order), seed, resident_blocks}});
}}
"""


def kernel_names(code: str) -> list[str]:
    """The extern "C" kernels of a .cu file, of which a macro may make some: NAME_IN_CAPITALS(kernel, ...)."""
    plain = re.findall(r'extern "C" __global__ void\s+(?:__launch_bounds__\(\w+\)\s+)?([a-z]\w*)\(', code)
    made = re.findall(r"^[A-Z][A-Z_]*\(([a-z]\w*), ", code, re.MULTILINE)
    return plain + made


def host_source(code: str) -> str:
    """A C++ file of these kernels and their table, to be compiled with -I of this folder."""
    table = ", ".join(f'cuda_on_host::Adapted<{name}>::kernel("{name}")' for name in kernel_names(code))
    head = '#include "cuda_on_host.hpp"\n#line 1 "kernel.cu"\n'
    return f'{head}{code}\n#include "launch.hpp"\n{_LIBRARY.format(kernels=table)}'


def build(code: str, flags: Sequence[str] = ("-O2",)) -> Path:
    """The library, compiled once for each source and set of flags; RuntimeError: what the compiler says."""
    kept = [file.read_text(encoding="utf-8") for file in sorted(HERE.glob("*.?pp"))]
    launcher = _made("o", [*kept, *flags], [*flags, "-c", str(HERE / "launch.cpp")])
    source = host_source(code)
    return _made(
        "so", [source, *kept, *flags], [*flags, "-shared", "-xc++", "-", "-xnone", str(launcher)], source
    )


def _made(suffix: str, parts: Sequence[str], arguments: Sequence[str], source: str = "") -> Path:
    """What the compiler makes of these arguments, unless it has been made of the same `parts` before."""
    key = hashlib.sha256("\0".join([COMPILER, *FLAGS, *parts]).encode()).hexdigest()[:24]
    wanted = CACHE / f"{key}.{suffix}"
    if wanted.exists():
        return wanted
    CACHE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=CACHE) as folder:
        made = Path(folder) / wanted.name
        command = [COMPILER, *FLAGS, f"-I{HERE}", "-fPIC", *arguments, "-o", str(made)]
        run = subprocess.run(command, input=source, capture_output=True, text=True, check=False)
        if run.returncode:
            raise RuntimeError(run.stderr)
        made.replace(wanted)  # whole or not at all: several processes may make it at once
    return wanted
