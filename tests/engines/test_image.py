"""The image of engines/kubernetes, built from its Dockerfile by buildah, and run as its manifests run it.

The stand-in for the base, which a registry would give, is Debian with its own Python.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest

from tests.daemons import P2PSGD, Daemon, all_stopped, assert_replicas_identical, until
from tests.operations.machines import CHECKOUT
from tests.ports import free_ports

DOCKERFILE: Final = CHECKOUT / "engines" / "kubernetes" / "Dockerfile"
RELEASE: Final = "bookworm"
PYTHON: Final = "3.11"  # of that release
PACKAGES: Final = "ca-certificates,python3,python3-dev,python3-pip"
LIMIT_S: Final = 1200
# A read-only root, the volumes of the pod, and the image's user, in namespaces of its own.
ENTER: Final = """
root=$1; state=$2; tls=$3; user=$4; shift 4
mount --bind "$root" "$root"
mkdir -p "$root/var/lib/p2psgd"
mount --bind "$state" "$root/var/lib/p2psgd"
mount -t tmpfs -o mode=1777 tmpfs "$root/tmp"
mkdir "$root/tmp/tls" && mount --bind "$tls" "$root/tmp/tls"
mount -t proc proc "$root/proc"
mount --rbind /dev "$root/dev"
mount -o remount,bind,ro "$root"
exec chroot --userspec="$user" "$root" env -i "$@"
"""


def run(*command: str, cwd: Path | None = None) -> str:
    print(shlex.join(command), flush=True)
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, timeout=LIMIT_S, cwd=cwd)
    return done.stdout


class Builder:
    """buildah, with a store of its own."""

    def __init__(self, place: Path) -> None:
        self._store = ["--root", str(place / "store"), "--runroot", str(place / "run")]

    def __call__(self, verb: str, *words: str) -> str:
        return run("buildah", *self._store, "--storage-driver", "vfs", verb, *words).strip()


def settings_of_pip() -> tuple[str, list[str]]:
    """Return a configuration for pip as it is set here, and the folders that it names."""
    lines = run(sys.executable, "-m", "pip", "config", "list").splitlines()
    values: dict[str, str] = {}
    for line in lines:
        name, _, value = line.partition("=")
        key = name.rpartition(".")[2]
        values[key] = " ".join(dict.fromkeys([*values.get(key, "").split(), *value.strip("'").split()]))
    words = [word for value in values.values() for word in value.split()]
    places = [Path(word) for word in words if word.startswith("/")]
    folders = {each if each.is_dir() else each.parent for each in places if each.exists()}
    # An index names files beside it.
    folders |= {Path(word.removeprefix("file://")).parent for word in words if word.startswith("file://")}
    return "\n".join(["[global]", *(f"{key} = {value}" for key, value in values.items())]), sorted(
        map(str, folders)
    )


def make_base(builder: Builder, place: Path, pip: str) -> None:
    """Make what the Dockerfile begins with: a Debian with `python` and pip, and without a compiler."""
    root = place / "base"
    run("debootstrap", "--variant=minbase", f"--include={PACKAGES}", RELEASE, str(root))
    (root / "usr/bin/python").symlink_to("python3")
    (root / f"usr/lib/python{PYTHON}/EXTERNALLY-MANAGED").unlink(missing_ok=True)
    (root / "etc/pip.conf").write_text(pip)
    container = builder("from", "scratch")
    builder("add", container, str(root), "/")
    builder("config", "--env", "PATH=/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", container)
    builder("commit", "--rm", container, f"docker.io/library/python:{PYTHON}-slim")
    shutil.rmtree(root)


class Pod(Daemon):
    """A node in the image, as the manifests run it: read-only root, a user of its own, its volumes."""

    def __init__(self, root: str, config: dict[str, Any], place: Path, *options: str) -> None:
        self.state, self.log = place / "state" / "node", place / "log.txt"
        command = [*config["Env"], *config["Entrypoint"], "node", *options]
        words = [root, str(place / "state"), str(place / "tls"), config["User"], *command]
        with self.log.open("wb") as output:
            self.process = subprocess.Popen(
                [
                    "unshare",
                    "--mount",
                    "--pid",
                    "--fork",
                    "--kill-child",
                    "sh",
                    "-euc",
                    ENTER,
                    "enter",
                    *words,
                ],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def first_process(self) -> int:
        return int(Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text())


def answers(port: int, path: str) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def folder_of(place: Path, ca: Path, name: str, user: str) -> None:
    """Make the volumes of a pod: its state, and its own certificate."""
    for folder in ("state", "tls"):
        (place / folder).mkdir(parents=True)
    shutil.copy(ca / "ca.pem", place / "tls")
    for file in ("node.pem", "node.key"):
        shutil.copy(ca / "nodes" / name / file, place / "tls")
    owner, group = map(int, user.split(":"))
    for each in (place / "state", place / "tls", *(place / "tls").iterdir()):
        os.chown(each, owner, group)


@pytest.mark.root
@pytest.mark.timeout(2400)
def test_the_image_is_built_and_two_of_it_train_as_pods_do(
    tmp_path: Path, needs: Callable[..., None]
) -> None:
    needs("buildah", "debootstrap", "unshare", "chroot")
    builder = Builder(tmp_path)
    pip, folders = settings_of_pip()
    make_base(builder, tmp_path, pip)
    volumes = [word for folder in folders for word in ("--volume", f"{folder}:{folder}:ro")]
    ways = ["--isolation", "chroot", "--network", "host", "--pull-never", *volumes]
    version = f"PYTHON={PYTHON}"
    builder("build", *ways, "--build-arg", version, "-f", str(DOCKERFILE), "-t", "p2psgd", str(CHECKOUT))
    config = json.loads(builder("inspect", "--type", "image", "localhost/p2psgd"))["OCIv1"]["config"]
    root = builder("mount", builder("from", "--pull-never", "localhost/p2psgd"))
    assert not [name for name in ("gcc", "g++", "make") if (Path(root) / "usr/bin" / name).exists()]

    names = ["pod-0", "pod-1"]
    run(*P2PSGD, "ca", "init", "--run", "digits", cwd=tmp_path)
    run(*P2PSGD, "ca", "issue", *names, cwd=tmp_path)
    ports = free_ports(4)
    peers, pods = "".join(f"127.0.0.1:{port}\n" for port in ports[:2]), []
    for name, port, http in zip(names, ports[:2], ports[2:], strict=True):
        folder_of(tmp_path / name, tmp_path / "ca", name, config["User"])
        (tmp_path / name / "state" / "hosts.txt").write_text(peers)
        options = [
            "--peers",
            "/var/lib/p2psgd/hosts.txt",
            "--listen",
            f"127.0.0.1:{port}",
            "--tls",
            "/tmp/tls",
        ]
        options += ["--http", f"127.0.0.1:{http}", "--trainer", "p2psgd train --recipe digits --steps 200"]
        pods.append(Pod(root, config, tmp_path / name, *options))
    with all_stopped(list(pods)):
        for http in ports[2:]:
            until(lambda http=http: answers(http, "/readyz"), "it is ready")  # type: ignore[misc]
        assert answers(ports[2], "/livez")
        until(lambda: all(pod.finished() for pod in pods), "both have trained", timeout_s=180)
        assert_replicas_identical(list(pods))
        owners = {os.stat(f"/proc/{pod.first_process()}").st_uid for pod in pods}
        assert owners == {int(config["User"].split(":")[0])}
        for pod in pods:
            os.kill(pod.first_process(), signal.SIGTERM)
        assert [pod.process.wait(60) for pod in pods] == [0, 0]
