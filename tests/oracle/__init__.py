"""The oracle: what p2psgd does, frozen, so that a redesign can show that it still does the same.

What: hashes and texts of all that leaves the program, taken before the redesign and kept in `frozen/`.

- `sim`: for seeds of the simulator's families "async" and "ring" three hashes each. `wire` covers each frame
  that a node gives to a link (virtual time, source, target, bytes) and, at the end of the run, each living
  node's frontier, digest, weights and view. `local` covers what goes to the trainer and to the disk. `orders`
  covers every effect with its values, sentences included.
- `vectors`: SHA-256 of each golden vector.
- `ring`: the final digest of `p2psgd local` in ring mode, for each payload.
- `cli`: the `--help` of every command, what wrong invocations print and return, and the exit codes.
- `status`: the schema of what the commands print as JSON, and of the metrics.

Why: tests name modules, classes and functions, so a redesign changes them together with the code. The
oracle names none: a value is the tuple of its fields, an enum is its value. Only `subject.py` names what it
watches; when a class moves, its import changes there, and when an effect changes its shape, `subject.py`
makes of it what it was. (`status.py` reads a few keys to know when a node is ready to be looked at.)
Effects of one moment that go to different places (a link, the trainer, the disk, people) may change their
order, and so may frames to different peers; what goes to one place may not.

How::

    python -m tests.oracle check                        # all parts; exit code 1 if anything differs
    python -m tests.oracle check sim --seeds 0:200      # some seeds
    python -m tests.oracle dump ring:17 > after.txt     # every line behind the hashes of a seed
    python -m tests.oracle freeze cli                   # after a stated change
    python -m tests.oracle freeze sim --seeds 800:900   # these seeds; those frozen before stay

To find the first difference of a seed, dump it in a checkout of the frozen code too and compare with diff.
Seeds are the same in every process and on every machine with the same Python, numpy and C library. The
digests of `ring` depend on the kernels that BLAS chooses for the processor. `check` says so when something
differs and the machine is another one; then freeze with the old code there first.

`make test` checks `vectors`, `cli` and five seeds of each family. All 4,000 seeds take about half an hour
of one core, `ring` half a minute, `status` two to three minutes.

The oracle is scaffolding of the redesign. When behaviour changes on purpose, the part is frozen anew in the
same commit; once the redesign is complete, the package goes.
"""
