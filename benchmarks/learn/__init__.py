"""Compare what ways of distributed training learn from equally many samples: end loss, and bytes sent.

    python -m benchmarks.learn [--only GLOB] [--again] [--list] [--page]      (make learn)

Every case is a real training: processes of their own that talk over sockets, all of them by trainer.py. Each
way takes the same batches from the same start; its learning rate is searched in the same short list. Times
are not compared: the bench needs no quiet machine, and under three hours of two cores. Figures are kept case
by case in docs/explanation/learning.json, so an interrupted run goes on where it stopped, and a case that has
changed is run anew.
"""
