"""A transformer whose matrices are cut over the ranks of a group by tensor parallelism.

Two groups of two ranks on one machine:
`p2psgd local -n 2 --parts 2 --trainer "torchrun --nproc-per-node 2 tensor_parallel.py"`. Without the five
lines that are marked it is a plain script for one group, whose ranks all take the same samples.
"""

import argparse

import torch
import torch.distributed as dist
from byte_gpt import GPT, RATE, batches_of, loss_of, read_windows, set_rate
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import p2psgd.torch  # p2psgd

options = argparse.ArgumentParser(description=__doc__)
options.add_argument("--steps", type=int, default=1000)
options.add_argument("--batch", type=int, default=4, help="windows of a group in each step")
options.add_argument("--seed", type=int, default=1)
asked = options.parse_args()

torch.set_num_threads(1)
dist.init_process_group("gloo")
torch.manual_seed(asked.seed)
model = GPT()
mesh = init_device_mesh("cpu", (dist.get_world_size(),))
columns, rows = ("query", "key", "value", "widen"), ("out", "narrow")
for layer in model.layers.values():
    plan = {name: ColwiseParallel() for name in columns} | {name: RowwiseParallel() for name in rows}
    parallelize_module(layer, mesh, plan)
parallelize_module(model, mesh, {"head": ColwiseParallel(output_layouts=Replicate())})
optimizer = torch.optim.AdamW(
    model.parameters(), lr=RATE, betas=(0.9, 0.99), weight_decay=0.1, foreach=False
)  # foreach takes no mixture of DTensors and tensors
rank, ranks, done = 0, 1, 0
link = p2psgd.torch.attach(model, optimizer)  # p2psgd
rank, ranks, done = link.rank, link.world_size, link.steps  # p2psgd

train, test = read_windows()
batches = batches_of(
    train,
    steps=asked.steps,
    size=asked.batch,
    rank=rank,
    ranks=ranks,
)
for step in range(done, asked.steps):
    set_rate(optimizer, step, asked.steps)
    optimizer.zero_grad()
    windows = batches[step]
    loss = loss_of(model(windows[:, :-1]), windows[:, 1:])
    loss.backward()
    optimizer.step()
    link.report(loss=loss.item())  # p2psgd
link.close()  # p2psgd

with torch.no_grad():
    losses = [loss_of(model(part[:, :-1]), part[:, 1:]) for part in test.split(64)]
if dist.get_rank() == 0:
    print(f"test loss {torch.stack(losses).mean().item():.4f}")
dist.destroy_process_group()
