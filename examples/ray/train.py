"""The script of docs/engines/ray.md: least squares with 100 weights, by nodes that come and go."""

import sys
import time

import numpy as np

import p2psgd

steps = int(sys.argv[1])  # of all nodes together, so that a node that comes late does not begin anew
truth = np.random.default_rng(1).normal(size=100).astype(np.float32)
samples = np.random.default_rng()  # every node draws its own
with p2psgd.attach(np.zeros(100, np.float32)) as link:
    while link.steps + sum(link.peer_steps.values()) < steps and not link.stopping:
        link.receive()
        x = samples.normal(size=(256, 100)).astype(np.float32)
        error = x @ (link.weights - truth)
        link.send(-0.003 * (x.T @ error) / 256, threshold=4000)
        link.report(loss=float(error @ error) / 256)
        time.sleep(0.02)  # a model of some size takes this long
    print(f"{link.steps} steps here, mean error {np.abs(link.weights - truth).mean():.4f}")
