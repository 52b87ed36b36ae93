"""L-BFGS by `p2psgd.torch.closure`: as in one process, and the same to the bit on several nodes."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import p2psgd
from tests.daemons import Daemon, all_stopped, until
from tests.ports import free_ports
from tests.torch.needed import nn, p2psgd_torch, torch

pytestmark = pytest.mark.long

SCRIPT = """
import sys
from pathlib import Path
import torch
import p2psgd.torch
from tests.torch.test_closure import make, cross_entropy

torch.set_num_threads(1)
model, data = make()
with p2psgd.torch.closure(model, cross_entropy, data, portions=8) as closure:
    torch.optim.LBFGS(model.parameters(), max_iter=15, line_search_fn="strong_wolfe").step(closure)
    bits = torch.cat([each.detach().reshape(-1) for each in model.parameters()]).numpy().tobytes().hex()
    place = Path(sys.argv[1]) / closure.link.node
    place.with_suffix(".new").write_text(bits)
    place.with_suffix(".new").rename(place.with_suffix(".bits"))
"""


def make() -> tuple[Any, tuple[Any, Any]]:
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(8, 12), nn.Tanh(), nn.Linear(12, 3))
    inputs = torch.randn(400, 8)
    return model, (inputs, (inputs @ torch.randn(8, 3)).argmax(dim=1))


def cross_entropy(model: Any, inputs: Any, targets: Any) -> Any:
    return nn.functional.cross_entropy(model(inputs), targets)


def test_lbfgs_goes_as_in_one_process() -> None:
    model, data = make()
    plain, _ = make()
    optimizer = torch.optim.LBFGS(plain.parameters(), max_iter=8)

    def closure_of_one() -> Any:
        optimizer.zero_grad()
        loss = cross_entropy(plain, *data)
        loss.backward()
        return loss

    optimizer.step(closure_of_one)
    with p2psgd_torch.closure(model, cross_entropy, data, portions=8, alone=True) as closure:
        torch.optim.LBFGS(model.parameters(), max_iter=8).step(closure)
        assert closure.value is not None
        closure()
        assert closure.value == pytest.approx(cross_entropy(plain, *data).item(), rel=1e-3)
        with torch.no_grad():
            next(model.parameters()).add_(1e-3)  # as a line search does that goes back to an earlier point
    keeping = closure.link._keeping
    flat = torch.cat([each.detach().reshape(-1) for each in model.parameters()])
    np.testing.assert_array_equal(keeping._point, flat.numpy())
    assert keeping._is_end
    for mine, other in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("count", [1, 3])
def test_all_nodes_end_with_the_same_bits(tmp_path: Path, count: int) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    ports = free_ports(count)
    (tmp_path / "hosts.txt").write_text("".join(f"127.0.0.1:{port}\n" for port in ports))
    command = shlex.join([sys.executable, str(tmp_path / "train.py"), str(tmp_path)])
    root = str(Path(__file__).parents[2])
    daemons = [
        Daemon(
            tmp_path / f"n{number}",
            *("--peers", str(tmp_path / "hosts.txt"), "--listen", f"127.0.0.1:{port}"),
            *("--failure-timeout", "2", "--trainer", command),
            environment={"PYTHONPATH": root},
        )
        for number, port in enumerate(ports)
    ]
    places = [tmp_path / f"n{number}.bits" for number in range(count)]
    with all_stopped(daemons):
        until(lambda: all(place.exists() for place in places), "all have ended")
    bits = {place.read_text() for place in places}
    assert len(bits) == 1
    model, data = make()
    with p2psgd_torch.closure(model, cross_entropy, data, portions=8, alone=True) as closure:
        torch.optim.LBFGS(model.parameters(), max_iter=15, line_search_fn="strong_wolfe").step(closure)
    flat = torch.cat([each.detach().reshape(-1) for each in model.parameters()])
    assert bits == {flat.numpy().tobytes().hex()}


def test_parameters_in_the_middle_of_an_evaluation_are_no_result() -> None:
    model, data = make()

    def breaks(model: Any, inputs: Any, targets: Any) -> Any:
        raise KeyboardInterrupt

    closure = p2psgd_torch.closure(model, cross_entropy, data, portions=8, alone=True)
    closure()
    closure._loss = breaks
    with torch.no_grad():
        next(model.parameters()).add_(1.0)
    with pytest.raises(KeyboardInterrupt):
        closure()
    model.bfloat16()
    closure.close()
    assert not closure.link._keeping._is_end
    assert closure.link._closed


def test_a_model_in_bfloat16_by_then_is_kept_as_it_is() -> None:
    model, data = make()
    with p2psgd_torch.closure(model, cross_entropy, data, portions=8, alone=True) as closure:
        closure()
        model.bfloat16()
    assert closure.link._closed
    assert closure.link._keeping._is_end


def test_dropout_is_refused() -> None:
    model = nn.Sequential(nn.Linear(8, 12), nn.Dropout(0.5), nn.Linear(12, 3))
    _, data = make()
    with (
        p2psgd_torch.closure(model, cross_entropy, data, alone=True) as closure,
        pytest.raises(p2psgd.TrainerError, match="gave two results at one point"),
    ):
        closure()


def test_other_models_and_data_are_refused() -> None:
    model, (inputs, targets) = make()
    with pytest.raises(p2psgd.TrainerError, match=r"have \[399, 400\] samples"):
        p2psgd_torch.closure(model, cross_entropy, (inputs, targets[1:]))
    with pytest.raises(p2psgd.TrainerError, match="all float32 or all float64"):
        p2psgd_torch.closure(model.half(), cross_entropy, (inputs, targets))


def test_other_tensors_have_another_digest() -> None:
    from p2psgd.torch.closure import _digest_tensor  # noqa: PLC0415 - without PyTorch there is no such module

    model, (inputs, targets) = make()
    others = (inputs + 1, inputs.flip(0), inputs.bfloat16(), 2 * inputs.bfloat16(), inputs.numpy())
    odd = (inputs.to_sparse(), inputs[:0], inputs[:, :0], inputs > 0, inputs.to(torch.complex64))
    assert len(set(map(_digest_tensor, (inputs, *others, *odd)))) == 11
    assert _digest_tensor(inputs.clone().T.contiguous().T) == _digest_tensor(inputs)
    with p2psgd_torch.closure(model, cross_entropy, (inputs, targets), alone=True) as closure:
        assert closure._data.samples == len(inputs)
        assert closure._data.digest == _digest_tensor(inputs) + _digest_tensor(targets)
