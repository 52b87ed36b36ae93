"""A transformer whose layers are shared out over the ranks of a group, as stages of a pipeline.

Two groups of two stages on one machine:
`p2psgd local -n 2 --parts 2 --trainer "torchrun --nproc-per-node 2 pipeline.py"`. Without the five lines that
are marked it is a plain script for one group, whose stages all work on the same samples.
"""

import argparse

import torch
import torch.distributed as dist
from byte_gpt import GPT, LAYERS, RATE, batches_of, loss_of, read_windows, set_rate
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

import p2psgd.torch  # p2psgd

options = argparse.ArgumentParser(description=__doc__)
options.add_argument("--steps", type=int, default=1000)
options.add_argument("--batch", type=int, default=4, help="windows of a group in each step")
options.add_argument("--seed", type=int, default=1)
asked = options.parse_args()

torch.set_num_threads(1)
dist.init_process_group("gloo")
torch.manual_seed(asked.seed)
stage, stages = dist.get_rank(), dist.get_world_size()
model = GPT()
for number in range(LAYERS):
    if number * stages // LAYERS != stage:
        del model.layers[str(number)]  # those that stay keep their names
if stage > 0:
    model.bytes = model.places = None
if stage < stages - 1:
    model.norm = model.head = None
optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, betas=(0.9, 0.99), weight_decay=0.1)
rank, ranks, done = 0, 1, 0
link = p2psgd.torch.attach(model, optimizer, part=(stage, stages))  # p2psgd
rank, ranks, done = link.rank, link.world_size, link.steps  # p2psgd
pipeline = ScheduleGPipe(
    PipelineStage(model, stage, stages, torch.device("cpu")), n_microbatches=2, loss_fn=loss_of
)

train, test = read_windows()
batches = batches_of(
    train,
    steps=asked.steps,
    size=asked.batch,
    rank=rank,
    ranks=ranks,
)


def run(work, windows: torch.Tensor) -> torch.Tensor:
    """Let a batch pass through all stages; return its loss, which the last one knows."""
    losses: list[torch.Tensor] = []
    inputs = (windows[:, :-1],) if stage == 0 else ()
    last = {"target": windows[:, 1:], "losses": losses} if stage == stages - 1 else {}
    work(*inputs, **last)
    return torch.stack(losses).mean() if losses else torch.zeros(())


for step in range(done, asked.steps):
    set_rate(optimizer, step, asked.steps)
    optimizer.zero_grad()
    loss = run(pipeline.step, batches[step])
    optimizer.step()
    if step % 20 == 0 and stage == stages - 1:
        print(f"step {step}: loss {loss.item():.4f}")
        link.report(loss=loss.item())  # p2psgd
link.close()  # p2psgd

losses = [run(pipeline.eval, part) for part in test.split(asked.batch)]
if stage == stages - 1:
    print(f"test loss {torch.stack(losses).mean().item():.4f}")
dist.destroy_process_group()
