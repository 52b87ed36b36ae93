"""Softmax regression by SciPy's L-BFGS-B on all nodes, which come to the same weights to the bit.

On four nodes of this machine: `p2psgd local -n 4 --trainer "python examples/scipy/logistic.py"`.
"""

import hashlib
import os

os.environ["OPENBLAS_NUM_THREADS"] = "1"  # SciPy's inner products depend on it: as many on all nodes

import numpy as np
from scipy.optimize import minimize

import p2psgd

chance, (CLASSES, FEATURES, SAMPLES, DECAY) = np.random.default_rng(1), (5, 30, 20_000, 1e-3)
inputs = chance.normal(size=(SAMPLES, FEATURES))
targets = (inputs @ chance.normal(size=(FEATURES, CLASSES)) + chance.gumbel(size=(SAMPLES, CLASSES))).argmax(
    1
)


def loss_and_gradient(x, part):
    rows, labels = part
    weights = x.reshape(FEATURES, CLASSES)
    scores = rows @ weights
    scores -= scores.max(axis=1, keepdims=True)
    logs = scores - np.log(np.exp(scores).sum(axis=1, keepdims=True))
    wrong = np.exp(logs) - np.eye(CLASSES)[labels]
    share = len(rows) / SAMPLES  # of the mean, and of the weight decay
    loss = -logs[np.arange(len(rows)), labels].sum() / SAMPLES + share * DECAY / 2 * (x @ x)
    return loss, (rows.T @ wrong).reshape(-1) / SAMPLES + share * DECAY * x


x0 = np.zeros(FEATURES * CLASSES)
with p2psgd.scipy_fun(loss_and_gradient, x0, (inputs, targets)) as fun:
    result = minimize(fun, x0, jac=True, method="L-BFGS-B", options={"gtol": 1e-8, "ftol": 1e-14})
bits = hashlib.sha256(result.x.tobytes()).hexdigest()[:16]
print(
    f"{fun.link.node}: {result.nit} iterations, {result.nfev} evaluations, loss {result.fun:.12f}, x {bits}"
)
