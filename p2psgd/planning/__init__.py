"""What a run will do before it is run: steps a second, bytes, and what holds it up, from a few numbers.

[TernGrad 2017] (appendix B) predicts throughput from one profiled node, as computing time plus communication
time, of latency and size / bandwidth. This begins there and adds what that leaves out: how well gradients are
coded, what the processors of a node have to do, and what overlaps. Pure arithmetic: nothing here reads, asks
or measures. How far it is off is measured by tests/bench/scaling and told in docs/scaling.md.
"""
