"""Bytes <-> values, and nothing else: what travels between peers and what is done with it, weight by weight.

`SPEC.md`, `VIEWS.md`, `RINGS.md`, `OWNERS.md` and `EVALUATIONS.md` are the specification, for authors of a
peer in another language. `frames`, `messages`, `ring_messages`, `update`, `cover`, `contribution` and
`evaluation` define how a connection's bytes become messages, `codec` is the Python face of the C++ core in
`native/`: the update payload, the residual pass, applying, digests and checksums. Pure: no sockets, clocks,
threads or random numbers.
"""
