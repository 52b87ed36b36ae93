"""Runs the oracle: see the package."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from typing import Any, Final

import tests.oracle
from tests.oracle import commands, ring, schema, sim, status, vectors
from tests.oracle.files import differences, load, other_machine, remember_machine, save
from tests.oracle.subject import FAMILIES

OBSERVED: Final[dict[str, Callable[[], Any]]] = {
    "vectors": vectors.observe,
    "cli": commands.observe,
    "ring": ring.observe,
}
PARTS: Final = ("vectors", "cli", "ring", "status", "sim")
SHOWN_MAX: Final = 60  # differences of a part


def seed_range(text: str) -> range:
    first, colon, end = text.partition(":")
    if not (first.isdigit() and colon and end.isdigit() and int(first) < int(end)):
        raise argparse.ArgumentTypeError(f"{text!r} is not A:B with A < B")
    return range(int(first), int(end))


def freeze(part: str, arguments: argparse.Namespace) -> None:
    """Freeze a part with the code as it is."""
    if part == "sim":
        sim.freeze(arguments.seeds, arguments.families, arguments.processes)
    elif part == "status":
        save(part, status.observe_often())
    else:
        observed = OBSERVED[part]()
        again = list(differences(part, observed, OBSERVED[part]()))
        if again:
            raise SystemExit("\n".join(("two observations differ, so nothing is frozen:", *again)))
        save(part, observed)
    remember_machine(part)


def check(part: str, arguments: argparse.Namespace) -> Iterator[str]:
    """Yield a line for each difference of a part."""
    if part == "sim":
        yield from sim.check(arguments.seeds, arguments.families, arguments.processes)
    elif part == "status":
        yield from schema.differences(load(part), status.observe())
    else:
        yield from differences(part, load(part), OBSERVED[part]())


def check_and_report(part: str, arguments: argparse.Namespace) -> bool:
    """Print what differs in a part; whether nothing does."""
    count = 0
    for line in check(part, arguments):
        count += 1
        if count <= SHOWN_MAX:
            print(line, flush=True)
    if count > SHOWN_MAX:
        print(f"and {count - SHOWN_MAX} more")
    other = other_machine(part) if count else ""
    if other:
        print(f"{part} was frozen on another machine: here is {other}")
    print(f"{part}: {count} differences" if count else f"{part}: as frozen", flush=True)
    return not count


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.oracle",
        description=tests.oracle.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("action", choices=("freeze", "check", "dump"))
    parser.add_argument("what", nargs="*", help=f"of {', '.join(PARTS)} (default: all); dump: FAMILY:SEED")
    parser.add_argument(
        "--seeds", type=seed_range, metavar="A:B", help="default: freeze 0:2000, check all frozen"
    )
    parser.add_argument("--families", nargs="+", choices=FAMILIES, default=list(FAMILIES))
    parser.add_argument("--processes", type=int, default=1, help="for sim")
    arguments = parser.parse_args()
    if arguments.action == "dump":
        try:
            for line in (line for which in arguments.what for line in sim.dump(which)):
                print(line)
        except ValueError as error:
            parser.error(str(error))
        return
    parts = arguments.what or PARTS
    if unknown := set(parts) - set(PARTS):
        parser.error(f"there is no part {min(unknown)!r}: there are {', '.join(PARTS)}")
    if arguments.action == "freeze":
        for part in parts:
            freeze(part, arguments)
        return
    equal = [check_and_report(part, arguments) for part in parts]
    sys.exit(not all(equal))


if __name__ == "__main__":
    main()
