"""Machines to follow docs/how-to/operations.md on: hosts of a `Lan`, each with a systemd, processes, disk
and a name of its own, that can be installed on, switched off and be lost.

Their disk begins as this machine's, without what is installed of p2psgd. A few programs that would need the
Internet, or a password, have stand-ins: see `STAND_INS`.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import p2psgd
from tests.daemons import until
from tests.lan import Lan

CHECKOUT: Final = Path(__file__).parent.parent.parent
HOME: Final = "/home/operator"

# By name; `#!/bin/bash` comes before. The homes of all machines are below /shared/homes, by address.
STAND_INS: Final = {
    "sudo": 'exec "$@"',  # all are root here
    "apt-get": "exec dpkg --status python3-venv >/dev/null",  # nothing to fetch, and it must be there
    "scp": 'target=/shared/homes/${*: -1}\nexec cp -r "${@:1:$#-1}" "${target/://}"',
    # The real one is tested by `.ci/check-wheel`.
    "make": "rm -rf dist; mkdir dist; cp /shared/*.whl dist; cp -r /shared/systemd .\n"
    "[ -e .venv ] || { python3 -m venv .venv; .venv/bin/pip install dist/*.whl; }",
    # As it is, but with the pip that the system has instead of a copy of it, which takes most of the time.
    "python3": """if [ "$1 $2" != "-m venv" ]; then exec /usr/bin/python3 "$@"; fi
/usr/bin/python3 -m venv --without-pip "$3"
wheel=$(ls /usr/share/python-wheels/pip-*.whl /usr/lib/python3*/ensurepip/_bundled/pip-*.whl 2>/dev/null |
  head -n 1)
printf '#!/bin/bash\\nexec "%s/bin/python3" "%s/pip" "$@"\\n' "$(realpath "$3")" "$wheel" >"$3/bin/pip"
chmod +x "$3"/bin/pip""",
}


def is_possible() -> bool:
    """Whether systemd can be the first process of namespaces here, as far as one can know before."""
    return (
        Path("/lib/systemd/systemd").exists()
        and Path("/usr/bin/python3").exists()
        and _version("/usr/bin/python3") == sys.version_info[:2]
        and _cgroups() is not None
    )


def _version(python: str) -> tuple[int, ...]:
    asked = [python, "-c", "import sys, ensurepip; print(*sys.version_info[:2])"]
    done = subprocess.run(asked, capture_output=True, text=True, check=False)
    return tuple(int(word) for word in done.stdout.split())


def _cgroups() -> Path | None:
    """Where the control groups of version 2 are."""
    for line in Path("/proc/mounts").read_text().splitlines():
        _, place, kind, *_ = line.split()
        if kind == "cgroup2":
            return Path(place)
    return None


class Machines:
    """`names` in the order of the addresses 10.77.0.1, 10.77.0.2, ... Each is off until `start`."""

    def __init__(self, names: list[str], place: Path) -> None:
        self.names = names
        self.lan = Lan(len(names), rate="1gbit", burst="256kb")
        self._place = place
        self._shared = place / "shared"
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Self:
        for address in self.lan.addresses:
            (self._shared / "homes" / address).mkdir(parents=True)
        self._lay_out_software()
        self.lan.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for name in list(self._running):
            self.stop(name)
        self.lan.__exit__(kind, error, trace)

    def start(self, name: str) -> None:
        """Switch on a machine that has never run, or has lost its disk."""
        disk = self._place / name
        disk.mkdir(exist_ok=True)
        group = self._group(name)
        group.mkdir()
        enter = f"echo $$ > {group}/cgroup.procs && exec {' '.join(self.lan.within(self.names.index(name)))}"
        apart = "unshare --mount --pid --uts --ipc --cgroup --fork --kill-child --propagation private"
        boot = f"bash {Path(__file__).parent}/boot.sh {name} {disk} {self._shared}"
        self._running[name] = subprocess.Popen(["bash", "-c", f"{enter} {apart} {boot}"])
        until(lambda: self.run(name, "systemctl is-active --quiet basic.target")[0] == 0, f"{name} is up")
        home = f"/shared/homes/{self._address(name)}"
        self._check(name, f"mount --bind {home} {HOME} && python3 -c 'import ensurepip'")

    def stop(self, name: str) -> None:
        """Switch it off, as by its plug; its disk is lost with it."""
        process = self._running.pop(name)
        process.kill()  # and with it, by --kill-child, all that is in its namespaces
        process.wait()
        group = self._group(name)
        until(lambda: "populated 0" in (group / "cgroup.events").read_text(), f"{name} is off")
        for directory in sorted(group.glob("**/"), reverse=True):
            directory.rmdir()
        home = self._shared / "homes" / self._address(name)
        shutil.rmtree(home)
        home.mkdir()

    def run(self, name: str, script: str, timeout_s: float = 300.0) -> tuple[int, str]:
        """What `script` says on a machine, and its exit code, in a person's home."""
        first = self._first_process(name)
        if first is None:
            return -1, "it is off"
        words = ["nsenter", "--target", str(first), "--all", "/usr/bin/env", "-i"]
        path = "/shared/stand-ins:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
        told = [f"PATH={path}", f"HOME={HOME}", "LANG=C.UTF-8", "TERM=xterm", "OPENBLAS_NUM_THREADS=1"]
        command = [*words, *told, "bash", "-euo", "pipefail", "-c", f"cd\n{script}"]
        try:
            done = subprocess.run(
                command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
                timeout=timeout_s, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired as late:
            return -2, (late.stdout or b"").decode(errors="replace") + f"\nnot done after {timeout_s:.0f} s"
        return done.returncode, done.stdout.decode(errors="replace")

    def _check(self, name: str, script: str) -> None:
        code, words = self.run(name, script)
        assert code == 0, f"{name}: {script}: {words}"

    def _first_process(self, name: str) -> int | None:
        """The systemd in its namespace, by its id here."""
        outer = self._running[name].pid
        assert self._running[name].poll() is None, f"{name} does not come up: {self._console(name)}"
        children = Path(f"/proc/{outer}/task/{outer}/children").read_text().split()
        if not children or "systemd" not in Path(f"/proc/{children[0]}/comm").read_text():
            return None
        return int(children[0])

    def _console(self, name: str) -> str:
        console = self._shared / f"{name}.console"
        return console.read_text() if console.exists() else "it has said nothing"

    def _address(self, name: str) -> str:
        return self.lan.addresses[self.names.index(name)]

    def _group(self, name: str) -> Path:
        groups = _cgroups()
        assert groups is not None
        return groups / f"{self.lan.hosts[self.names.index(name)]}"

    def _lay_out_software(self) -> None:
        """Stand-ins, what p2psgd depends on, and p2psgd itself as a wheel made of what runs here."""
        programs = self._shared / "stand-ins"
        programs.mkdir()
        for name, script in STAND_INS.items():
            (programs / name).write_text(f"#!/bin/bash\n{script}\n")
            (programs / name).chmod(0o755)
        shutil.copytree(CHECKOUT / "systemd", self._shared / "systemd")
        site = Path(sysconfig.get_path("purelib"))
        packages = self._shared / "packages"  # which boot.sh has every Python find, beside its own
        shutil.copytree(
            site, packages, ignore=lambda place, names: [n for n in names if _is_left_out(n)], symlinks=True
        )
        info = next(site.glob("p2psgd-*.dist-info"))
        wheel = self._shared / f"p2psgd-{p2psgd.__version__}-py3-none-any.whl"
        with zipfile.ZipFile(wheel, "w") as file:
            for source in (CHECKOUT, site):
                for path in sorted((source / "p2psgd").glob("**/*")):
                    if path.is_file() and "__pycache__" not in path.parts:
                        file.write(path, path.relative_to(source))
            for path in (info / "METADATA", info / "entry_points.txt"):
                file.write(path, path.relative_to(site))
            file.writestr(
                f"{info.name}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
            )
            file.writestr(f"{info.name}/RECORD", "")


def _is_left_out(name: str) -> bool:
    large = ("pytest", "hypothesis", "mypy", "ruff", "grimp", "virtualenv", "elftools", "ml_dtypes")
    return name.startswith(("_editable", "p2psgd", "__pycache__", *large))
