"""A process of PyTorch's gloo: `python -m benchmarks.ring.gloo PLACE COUNT INTERFACE ADDRESS...`.

The addresses, each with a port, are those of all places; at the first of them all meet.
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
    tensor = torch.from_numpy(share.copy())
    sums: Numbers = tensor.numpy()

    def allreduce(words: list[str]) -> Numbers:
        distributed.all_reduce(tensor)
        return sums

    def prepare() -> None:
        sums[:] = share

    serve(allreduce, prepare=prepare)


if __name__ == "__main__":
    main()
