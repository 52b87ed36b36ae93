"""Fuzzes the core: `python -m tests.fuzz [--seconds 60] [TARGET...]`; see README.md."""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

from tests.fuzz import CORPUS, TARGETS, source_of
from tests.wire.native_build import ROOT, SANITIZERS, build_programs, why_no_compiler

COMPILER = "clang++"
OUTPUT = ROOT / "build" / "fuzz"  # git ignores it
BYTES_MAX = 1200  # of an input: four blocks of a payload; longer ones are slow and meet nothing new


def build(targets: list[str]) -> dict[str, Path]:
    """The targets with libFuzzer and the sanitizers in them."""
    OUTPUT.mkdir(parents=True, exist_ok=True)
    if why_no_compiler(OUTPUT, ["-fsanitize=fuzzer-no-link,address,undefined"], compiler=COMPILER):
        raise SystemExit(
            "fuzzing needs clang++ with libFuzzer and sanitizers (Debian: apt-get install clang)"
        )
    return build_programs(
        OUTPUT,
        {target: [source_of(target)] for target in targets},
        ["-O2", "-g1", "-fsanitize=fuzzer-no-link", *SANITIZERS],
        link_flags=["-fsanitize=fuzzer"],
        compiler=COMPILER,
    )


def fuzz(program: Path, seconds: int) -> bool:
    """Run one target; whether nothing was found."""
    found = OUTPUT / f"{program.name}-corpus"
    found.mkdir(exist_ok=True)
    command = [
        str(program),
        f"-max_total_time={seconds}",
        f"-max_len={BYTES_MAX}",
        "-timeout=10",  # seconds for one input, which takes microseconds
        "-print_final_stats=1",
        "-print_funcs=0",
        f"-artifact_prefix={OUTPUT}/{program.name}-",
        str(found),
        str(CORPUS / program.name),
    ]
    log = OUTPUT / f"{program.name}.log"
    with log.open("wb") as output:
        done = subprocess.run(command, stdout=output, stderr=output, check=False)
    lines = log.read_text(errors="replace").splitlines()
    figures = dict(line.removeprefix("stat::").split(":") for line in lines if line.startswith("stat::"))
    executed = int(figures.get("number_of_executed_units", 0))
    print(f"{program.name}: {executed:,} inputs in {seconds} s", flush=True)
    if done.returncode:
        print("\n".join(lines[-40:]))
    return done.returncode == 0


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument(
        "targets", nargs="*", metavar="TARGET", help=f"of {', '.join(TARGETS)}; all by default"
    )
    parser.add_argument("--seconds", type=int, default=60, help="how long each target runs")
    arguments = parser.parse_args()
    if unknown := set(arguments.targets) - set(TARGETS):
        parser.error(f"unknown target {', '.join(sorted(unknown))}: there are {', '.join(TARGETS)}")
    programs = build(arguments.targets or list(TARGETS))
    faulty = [name for name, program in programs.items() if not fuzz(program, arguments.seconds)]
    if faulty:
        sys.exit(f"faults in {', '.join(faulty)}: their inputs are in {OUTPUT}; see tests/fuzz/README.md")


if __name__ == "__main__":
    main()
