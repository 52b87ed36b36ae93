"""One file for one machine: a node's TLS directory as a tar archive, which `tar -x` unpacks anywhere.

It holds the node's key, so it is made for its owner alone and does not belong into a mail or onto a disk that
stays.
"""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

from p2psgd.errors import ExitCode, UsageError, cannot
from p2psgd.tls.key_file import write_key
from p2psgd.tls.names import CA_FILE, CERTIFICATE_FILE, KEY_FILE


def pack_bundle(directory: Path) -> bytes:
    """The archive of a TLS directory: three files, the key with mode 0600, of whoever unpacks it."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for name, mode in ((CA_FILE, 0o644), (CERTIFICATE_FILE, 0o644), (KEY_FILE, 0o600)):
            try:
                data = (directory / name).read_bytes()
            except OSError as error:
                raise cannot(f"read {directory / name}", error) from None
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(data), mode
            entry.mtime = int((directory / name).stat().st_mtime)
            archive.addfile(entry, io.BytesIO(data))
    return packed.getvalue()


def write_bundle(directory: Path, file: Path) -> None:
    """Write it to a new file; UsageError if that is there already or cannot be written."""
    data = pack_bundle(directory)
    try:
        write_key(file, data)
    except FileExistsError:
        words = f"{file} exists: name another with --out, or remove it"
        raise UsageError(words, ExitCode.CONFIGURATION) from None
    except OSError as error:
        raise cannot(f"write {file}", error) from None
