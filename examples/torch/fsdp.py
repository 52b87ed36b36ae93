"""A transformer whose weights, gradients and optimizer state are cut over the ranks of a group, by FSDP2.

Two groups of two ranks on one machine:
`p2psgd local -n 2 --parts 2 --trainer "torchrun --nproc-per-node 2 fsdp.py"`. Without the five lines that are
marked it is a plain script for one group, with rank and number of ranks of `torch.distributed`.
"""

import argparse

import torch
import torch.distributed as dist
from byte_gpt import GPT, RATE, batches_of, loss_of, read_windows, set_rate
from torch.distributed.fsdp import fully_shard

import p2psgd.torch  # p2psgd

options = argparse.ArgumentParser(description=__doc__)
options.add_argument("--steps", type=int, default=1000)
options.add_argument("--batch", type=int, default=4, help="windows of a group in each step")
options.add_argument("--seed", type=int, default=1)
asked = options.parse_args()

torch.set_num_threads(1)
dist.init_process_group("gloo")
if asked.batch < 1 or asked.batch % dist.get_world_size():
    options.error(f"--batch {asked.batch} cannot be shared out evenly to {dist.get_world_size()} ranks")
torch.manual_seed(asked.seed)
model = GPT()
for layer in model.layers.values():
    fully_shard(layer)
fully_shard(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, betas=(0.9, 0.99), weight_decay=0.1)
rank, ranks, done = dist.get_rank(), dist.get_world_size(), 0
link = p2psgd.torch.attach(model, optimizer)  # p2psgd
rank, ranks, done = link.rank, link.world_size, link.steps  # p2psgd

train, test = read_windows()
batches = batches_of(
    train,
    steps=asked.steps,
    size=asked.batch // dist.get_world_size(),
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
