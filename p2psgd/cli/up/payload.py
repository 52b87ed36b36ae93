"""Packs what `p2psgd up` copies to a machine: one tar file in memory, for ssh's standard input."""

from __future__ import annotations

import hashlib
import io
import tarfile
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from p2psgd.base.errors import ExitCode, UsageError, cannot
from p2psgd.net.address import PORT_DEFAULT, Address

BYTES_MAX: Final = 512 * 1024 * 1024  # of the wheels together; all of it is held in memory
TLS_FILES: Final = ("ca.pem", "node.pem", "node.key")
UNITS: Final = ("p2psgd.service", "p2psgd-trainer@.service")


@dataclass(frozen=True)
class Payload:
    """The files that all machines get, by their name in the tar file."""

    files: Mapping[str, bytes]
    trainer: str = ""

    @classmethod
    def read(
        cls,
        wheel: Path,
        units: Path,
        hosts: Path,
        *,
        config: Path | None,
        trainer: str,
        trainer_env: Path | None,
    ) -> Payload:
        """Read all of them; UsageError if one cannot be.

        wheel: a file, or a folder with p2psgd's wheel and those of all that it needs, which machines without
        an index then install from.
        """
        files = {"install.sh": _read(Path(__file__).with_name("install.sh"))}
        wheels = sorted(wheel.glob("*.whl")) if wheel.is_dir() else [wheel]
        ours = [each for each in wheels if each.name.startswith("p2psgd-")]
        if len(ours) != 1 or not ours[0].is_file():
            raise UsageError(
                f"--wheel {wheel}: there must be one file p2psgd-*.whl, and there are {len(ours)}: make wheel"
                " makes one in dist/",
                ExitCode.CONFIGURATION,
            )
        files[ours[0].name] = _read(ours[0])
        files |= {f"wheels/{each.name}": _read(each) for each in wheels if each not in ours}
        if sum(map(len, files.values())) > BYTES_MAX:
            raise UsageError(f"the wheels in {wheel} have more than {BYTES_MAX} bytes together")
        files |= {name: _read(units / name, "--units (systemd/ of a checkout)") for name in UNITS}
        files["node.toml"] = _read(config or units / "node.toml.example", "--config")
        files["hosts.txt"] = _read(hosts)
        if trainer_env is not None:
            files["trainer.env"] = _read(trainer_env, "--trainer-env")
        return cls(files, trainer)

    def of_node(self, address: Address, tls: Path) -> dict[str, bytes]:
        """Return the files of the node at this address, its certificate among them."""
        own = {f"tls/{name}": _read(tls / name) for name in TLS_FILES}
        return {**self.files, "node.toml": with_port(self.files["node.toml"], address.port), **own}


def with_port(config: bytes, port: int) -> bytes:
    """Return a node's options with the port to listen on, if it is not the default one and they do not say
    where to listen.
    """
    try:
        options = tomllib.loads(config.decode())
    except ValueError as error:
        raise UsageError(f"--config is not TOML: {str(error)[:200]}", ExitCode.CONFIGURATION) from None
    if port == PORT_DEFAULT or "listen" in options:
        return config
    return b'listen = "0.0.0.0:%d"\n' % port + config


def digest_of(files: Mapping[str, bytes], trainer: str) -> str:
    """Return what stands for these files on a machine that has them all."""
    mixed = hashlib.sha256(trainer.encode())
    for name, data in sorted(files.items()):
        mixed.update(name.encode() + b"\0" + hashlib.sha256(data).digest())
    return mixed.hexdigest()


def pack(files: Mapping[str, bytes]) -> bytes:
    """Pack the files; only their owner may read what becomes of them."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for name, data in files.items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(data), 0o600
            archive.addfile(entry, io.BytesIO(data))
    return packed.getvalue()


def _read(path: Path, option: str = "") -> bytes:
    """Return a file, which this option has named; UsageError if it cannot be read."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        words = f"there is no file {path}"
        raise UsageError(f"{option}: {words}" if option else words, ExitCode.CONFIGURATION) from None
    except OSError as error:
        raise cannot(f"read {path}", error) from None
