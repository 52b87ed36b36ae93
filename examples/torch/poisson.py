"""A physics-informed net by L-BFGS on all nodes: u_xx + u_yy = -5 pi^2 u* in the unit square, 0 on the edge.

The solution is known, u* = sin(pi x) sin(2 pi y), and with it the error. By itself: `P2PSGD_ALONE=1 python
examples/torch/poisson.py`; on four nodes: `p2psgd local -n 4 --trainer "python examples/torch/poisson.py"`.
"""

import math

import torch
from torch import nn

import p2psgd.torch

torch.manual_seed(1)
torch.set_num_threads(1)
points = torch.rand(1000, 2, dtype=torch.float64)
net = nn.Sequential(nn.Linear(2, 20), nn.Tanh(), nn.Linear(20, 20), nn.Tanh(), nn.Linear(20, 1)).double()


def exact(at):
    return torch.sin(math.pi * at[:, 0]) * torch.sin(2 * math.pi * at[:, 1])


def solution(model, at):
    return (at * (1 - at)).prod(dim=1) * model(at)[:, 0]  # 0 on the border, whatever the net gives


def residual_loss(model, at):
    at = at.detach().requires_grad_()
    (slope,) = torch.autograd.grad(solution(model, at).sum(), at, create_graph=True)
    curves = [torch.autograd.grad(slope[:, i].sum(), at, create_graph=True)[0][:, i] for i in (0, 1)]
    return (curves[0] + curves[1] + 5 * math.pi**2 * exact(at)).square().mean()


with p2psgd.torch.closure(net, residual_loss, points, portions=8) as closure:
    torch.optim.LBFGS(net.parameters(), max_iter=200, line_search_fn="strong_wolfe").step(closure)
error = (solution(net, points) - exact(points)).norm() / exact(points).norm()
print(f"{closure.link.node}: loss {closure.value:.3e}, relative error {error:.2e}")
