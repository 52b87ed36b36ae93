"""A process of PyTorch's gloo: `python -m benchmarks.ring.gloo PLACE COUNT INTERFACE ADDRESS...`.

The addresses, each with a port, are those of all places; at the first of them all meet. A round sums float32,
or with the word `float64` as many of these.
"""

from __future__ import annotations

import importlib
import os
import sys

from benchmarks.ring.worker import Numbers, serve, share_of


def main() -> None:
    place, count = map(int, sys.argv[1:3])
    interface, *addresses = sys.argv[3:]
    os.environ["GLOO_SOCKET_IFNAME"] = interface
    torch = importlib.import_module("torch")
    distributed = importlib.import_module("torch.distributed")
    distributed.init_process_group(
        "gloo", init_method=f"tcp://{addresses[0]}", rank=place, world_size=len(addresses)
    )
    share = share_of(place, count)
    tensors = {kind: torch.from_numpy(share.astype(kind)) for kind in ("float32", "float64")}

    def allreduce(words: list[str]) -> Numbers:
        tensor = tensors[words[0] if words else "float32"]
        distributed.all_reduce(tensor)
        sums: Numbers = tensor.numpy()
        return sums

    def prepare() -> None:
        for tensor in tensors.values():
            tensor.numpy()[:] = share

    serve(allreduce, prepare=prepare)


if __name__ == "__main__":
    main()
