"""A Slurm of Debian's packages on the hosts of a `Lan`: a controller on the first, and a slurmd with a name
of its own on each of the others.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from tests.lan import Lan

SBIN: Final = "/usr/sbin:/usr/bin:/sbin:/bin"
CONFIG: Final = """
ClusterName=p2psgd
SlurmctldHost=ctl({control})
AuthType=auth/munge
AuthInfo=socket={place}/munge.sock
CredType=cred/munge
SlurmUser=root
SlurmdUser=root
StateSaveLocation={place}/ctl
SlurmdSpoolDir={place}/spool-%n
SlurmctldPidFile={place}/ctl.pid
SlurmdPidFile={place}/%n.pid
SlurmctldLogFile={place}/ctl.log
SlurmdLogFile={place}/%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/linear
SwitchType=switch/none
MpiDefault=none
SlurmdTimeout=20
KillWait=60
ReturnToService=0
JobRequeue=1
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
SlurmdParameters=config_overrides
{nodes}
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP GraceTime=100
PartitionName=urgent Nodes=ALL MaxTime=INFINITE State=UP PriorityTier=10
"""


class Slurm:
    """A cluster of `names`, one for each host of the Lan but the first, which has the controller."""

    def __init__(self, lan: Lan, place: Path, names: list[str]) -> None:
        self._lan, self._place, self.names = lan, place, names
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self.environment = {**os.environ, "SLURM_CONF": str(place / "slurm.conf")}

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            for log in sorted(self._place.glob("*.log")):
                print(f"--- {log.name}\n{log.read_text(errors='replace')[-1500:]}", flush=True)
        self._stop()

    def run(self, *command: str, environment: Mapping[str, str] | None = None, code: int = 0) -> str:
        """Run a command of Slurm's on the controller's host, and return what it says."""
        done = subprocess.run(
            [*self._lan.within(0), *command],
            env={**self.environment, **(environment or {})},
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )
        assert done.returncode == code, f"{command}: {done.stdout}{done.stderr}"
        return done.stdout.strip()

    def succeeds(self, *command: str) -> bool:
        """Run a command of Slurm's that may fail."""
        within = [*self._lan.within(0), *command]
        return subprocess.run(within, env=self.environment, capture_output=True, check=False).returncode == 0

    def state_of(self, name: str) -> str:
        return self.run("sinfo", "--noheader", f"--nodes={name}", "--format=%T")

    def job(self, number: str, field: str) -> str:
        """Return a field of squeue's for a job."""
        return self.run("squeue", "--noheader", f"--jobs={number}", f"--format={field}")

    def kill(self, name: str) -> None:
        """End everything on a machine at once, as by its plug."""
        namespace = self._lan.hosts[self.names.index(name) + 1]
        for _ in range(50):
            found = subprocess.run(
                ["ip", "netns", "pids", namespace], capture_output=True, text=True, check=True
            )
            if not found.stdout.split():
                return
            for process in found.stdout.split():
                try:
                    os.kill(int(process), signal.SIGKILL)
                except ProcessLookupError:
                    continue
            time.sleep(0.1)

    def _start(self) -> None:
        lan, place = self._lan, self._place
        config = CONFIG.format(
            place=place,
            control=lan.addresses[0],
            nodes="\n".join(
                f"NodeName={name} NodeAddr={address} CPUs=2"
                for name, address in zip(self.names, lan.addresses[1:], strict=True)
            ),
        )
        (place / "slurm.conf").write_text(config)
        # `ip netns exec` shows a /sys without control groups, and nothing here uses any.
        (place / "cgroup.conf").write_text("CgroupAutomount=no\nCgroupPlugin=cgroup/v1\n")
        for name in ("ctl", *(f"spool-{name}" for name in self.names)):
            (place / name).mkdir()
        known = "127.0.0.1 localhost\n" + "".join(
            f"{address} {name}\n" for name, address in zip(["ctl", *self.names], lan.addresses, strict=True)
        )
        for host in lan.hosts:
            folder = Path("/etc/netns") / host
            folder.mkdir(parents=True)
            (folder / "hosts").write_text(known)
        key = place / "munge.key"
        key.write_bytes(os.urandom(64))
        key.chmod(0o600)
        munge = [f"--socket={place}/munge.sock", f"--key-file={key}", f"--pid-file={place}/munge.pid"]
        munge += [f"--log-file={place}/munge.log", f"--seed-file={place}/munge.seed", "--force"]
        self._processes["munged"] = self._popen(["munged", "--foreground", *munge])
        deadline = time.monotonic() + 30
        while not (place / "munge.sock").exists():
            assert time.monotonic() < deadline, "munged does not come up"
            time.sleep(0.1)
        self._processes["ctl"] = self._host(0, "ctl", "slurmctld -D")
        for number, name in enumerate(self.names, start=1):
            self._processes[name] = self._host(number, name, f"slurmd -D -N {name}")

    def _host(self, number: int, name: str, command: str) -> subprocess.Popen[bytes]:
        script = f"hostname {name} && exec {command} -f {self._place}/slurm.conf"
        return self._popen([*self._lan.within(number), "unshare", "--uts", "sh", "-c", script])

    def _popen(self, command: list[str]) -> subprocess.Popen[bytes]:
        path = f"{os.environ.get('PATH', '')}:{SBIN}"
        program = shutil.which(command[0], path=path) or command[0]
        return subprocess.Popen(
            [program, *command[1:]], env={**self.environment, "PATH": path}, stdin=subprocess.DEVNULL
        )

    def _stop(self) -> None:
        for name in self.names:
            self.kill(name)
        for process in self._processes.values():
            process.kill()
            process.wait()
        for host in self._lan.hosts:
            shutil.rmtree(Path("/etc/netns") / host, ignore_errors=True)
