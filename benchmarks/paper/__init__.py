"""The experiment of [Strom 2015] in small: its tables 2, 3 and 4, with frame accuracy for word error rate.

    python -m benchmarks.paper [--only NAME] [--page]      (make paper)

needs a quiet machine, and under an hour of two cores. Every case is a real `p2psgd local`: daemons and
trainers as processes of their own that talk over TCP. What they are compared with is plain SGD in one
process, by the same recipe: same start, same samples in the same order, same rates. Figures are kept case by
case in docs/explanation/results.json, so an interrupted run goes on where it stopped; a case whose recipe has
changed is run anew.
"""
