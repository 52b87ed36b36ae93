# Every target sets up what it needs: a virtual environment in .venv, with the native core built into it.
# Needs only python3 (>= 3.11), pip, make and a C++ compiler.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(PYTHON) -m pip --python $(BIN)/python --disable-pip-version-check
# pip shows its progress where somebody watches: on a terminal. $(shell) takes the standard output away.
QUIET := $(shell test -t 2 || echo --quiet)
NATIVE := CMakeLists.txt pyproject.toml $(wildcard p2psgd/wire/native/*.?pp p2psgd/wire/native/kernels/*)

# Before PyTorch is downloaded for GPUs where there is none. No address of an index stands here: PyTorch's page has it,
# and pip reads PIP_EXTRA_INDEX_URL itself, from make's command line too.
NVIDIA := $(wildcard /proc/driver/nvidia/version)
define say_torch_sizes
@test -n "$(NVIDIA)$(PIP_EXTRA_INDEX_URL)$(PIP_INDEX_URL)" || $(BIN)/python -c 'import torch' 2>/dev/null || printf '%s\n' \
  "No NVIDIA GPU is found here, and unless pip is configured otherwise, its PyTorch brings about 5 GB of libraries for GPUs." \
  "PyTorch for CPUs has 0.8 GB: press Ctrl+C, take the address after --index-url from PyTorch's install page (compute" \
  "platform: CPU), and run: make $@ PIP_EXTRA_INDEX_URL=ADDRESS" >&2
endef

# Python keeps the bytecode of what it has compiled, whatever the caller's environment says: tests and chaos start
# processes by the thousand, and each would compile the whole package anew, a third of what its start takes.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: demo test test-all test-wide test-operations test-engines lint docs bench bench-tls paper rivals learn fuzz sim crowd chaos wheel wheels kernels test-gpu bench-gpu sanitize-gpu clean

demo: $(VENV)/.ready
	$(BIN)/p2psgd local -n 4 --recipe examples/demo.toml
	@echo
	@echo "One node alone reaches 52.6 % with this recipe, in as many passes over the data. Here the four share this machine's"
	@echo "processors; on machines of their own four nodes make four times as many steps a second (docs/explanation/scaling.md)."
	@echo "Next: make your own script one of several, by README.md, \"Your own training script\"."

# In six processes: most tests wait for clocks and sockets most of the time, the others keep two cores busy meanwhile.
SUITE := $(BIN)/python -m pytest --numprocesses 6 --dist worksteal

# Without the tests marked long (pyproject.toml says which they are): minutes on two cores, also beside other work.
test: $(VENV)/.test
	$(SUITE) -m "not long and not wide" $(PYTEST_ARGS)

# All tests; those that need root, a browser or PyTorch skip visibly where it is not there.
test-all: $(VENV)/.test
	$(SUITE) -m "not wide" $(PYTEST_ARGS)

# More settings of some of these, and benches that take long, before a release.
test-wide: $(VENV)/.test
	$(SUITE) -m wide $(PYTEST_ARGS)

lint: $(VENV)/.test $(VENV)/.lint
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# The documentation site, into build/site; every warning is an error, a link that leads nowhere is one.
docs: $(VENV)/.docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

bench: $(VENV)/.test $(VENV)/.bench
	$(BIN)/python -m benchmarks

# [Strom 2015] in small, into docs/explanation/results.*: under an hour of two cores that have nothing else to do. An interrupted run
# goes on where it was, and what was measured already is left as it is; PAPER="--only nodes-4-tau-2-5x384-seed-1", say,
# measures it anew, PAPER=--list names all.
paper: $(VENV)/.test $(VENV)/.bench
	$(BIN)/python -m benchmarks.paper $(PAPER)

# What TLS costs a daemon, and a ring of four nodes over 1 Gbit/s links, which needs root.
bench-tls: $(VENV)/.test
	$(BIN)/python -m benchmarks --large tls

# Beside PyTorch DDP and hivemind, on hosts with shaped links: two hours for each of two tasks on a quiet machine, needs root.
# RIVALS="--task gpt", say, runs one. What was measured already is left as it is; RIVALS="--task gpt --only 'p2psgd 100 *' --again",
# say, measures it anew.
rivals: $(VENV)/.test $(VENV)/.test-torch $(VENV)/.bench .venv-rivals/.ready
	$(BIN)/python -m benchmarks.rivals $(RIVALS)

# hivemind pins much, so it has an environment of its own, in which its hosts run.
.venv-rivals/.ready: pyproject.toml
	$(PYTHON) -m venv --without-pip .venv-rivals
	$(PYTHON) -c 'import tomllib; \
	  print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]["rivals"], sep="\n")' \
	  > .venv-rivals/rivals.txt
	$(PYTHON) -m pip --python .venv-rivals/bin/python --disable-pip-version-check install $(QUIET) \
	  --requirement .venv-rivals/rivals.txt
	touch $@

# End loss at equal samples, beside DDP, DiLoCo and SparseLoCo, into docs/explanation/learning.*: about five hours of two cores,
# which may have other work, as no times are compared. An interrupted run goes on where it was; LEARN="--only GLOB", say,
# runs a part, LEARN="--only GLOB --again" measures it anew, LEARN=--list names all.
learn: $(VENV)/.test $(VENV)/.test-torch $(VENV)/.bench
	$(BIN)/python -m benchmarks.learn $(LEARN)

# SECONDS for each target, or for TARGET alone: see tests/fuzz/README.md.
fuzz: $(VENV)/.test
	$(BIN)/python -m tests.fuzz $(if $(SECONDS),--seconds $(SECONDS)) $(TARGET)

# SEEDS=A:B of all families of the simulator on all cores: see tests/sim/README.md.
sim: $(VENV)/.test
	$(BIN)/python -m tests.sim --seeds $(or $(SEEDS),0:10000) --processes 0
	$(BIN)/python -m tests.sim --ring --seeds $(or $(SEEDS),0:10000) --processes 0
	$(BIN)/python -m tests.sim --owners --seeds $(or $(SEEDS),0:10000) --processes 0
	$(BIN)/python -m tests.sim --closure --seeds $(or $(SEEDS),0:10000) --processes 0
	$(BIN)/python -m tests.sim --liar --seeds $(or $(SEEDS),0:10000) --processes 0

# NODES in one process that train in rounds of owners while some are killed, restarted, join and leave: tests/sim/README.md.
crowd: $(VENV)/.test
	$(BIN)/python -m tests.sim --crowd $(or $(NODES),1000) --rounds $(or $(ROUNDS),100)

# MINUTES of real nodes and real faults drawn from SEED; needs root: see tests/chaos/README.md.
chaos: $(VENV)/.test
	$(BIN)/python -m tests.chaos --minutes $(or $(MINUTES),10) $(if $(SEED),--seed $(SEED)) $(if $(MODE),--mode $(MODE)) $(CHAOS_ARGS)

# The GPU's kernels by nvcc, for every generation that it knows.
kernels:
	.ci/compile-kernels

# docs/how-to/operations.md, followed to the letter on machines with a systemd of their own; needs root.
test-operations: $(VENV)/.test
	P2PSGD_OPERATIONS=1 $(BIN)/python -m pytest tests/operations -s $(PYTEST_ARGS)

# Nodes in the engines of docs/engines, as far as those are here: Slurm, Ray, sshd, dnsmasq, kubectl, PyTorch; most need root.
# What is not here is skipped, and named.
test-engines: $(VENV)/.test $(VENV)/.test-engines
	P2PSGD_ENGINES=1 $(BIN)/python -m pytest tests/engines -s $(PYTEST_ARGS)

# What needs an NVIDIA GPU; without one the tests skip, or fail if P2PSGD_REQUIRE_GPU is set.
test-gpu: $(VENV)/.test $(VENV)/.gpu
	$(BIN)/python -m pytest -m gpu tests benchmarks $(PYTEST_ARGS)

bench-gpu: $(VENV)/.test $(VENV)/.gpu
	$(BIN)/python -m benchmarks.gpu $(BENCH)

# The kernels' tests under compute-sanitizer, without CuPy's memory pool, which would hide what lies outside of arrays.
sanitize-gpu: $(VENV)/.test $(VENV)/.gpu
	for tool in memcheck racecheck; do \
	  P2PSGD_GPU_WITHOUT_POOL=1 compute-sanitizer --tool $$tool --error-exitcode 1 \
	    $(BIN)/python -m pytest -m gpu tests/gpu -k 'kernel and not million' --timeout 600 || exit 1; \
	done

# An sdist, and out of it a wheel that needs no compiler and no libstdc++ where it is installed. auditwheel names the
# oldest glibc it runs with; where it cannot (musl, say) the wheel keeps the tag of this machine, and make says so.
wheel: $(VENV)/.wheel
	rm -rf build/dist dist
	$(BIN)/python -m build --quiet --outdir build/dist --config-setting cmake.define.P2PSGD_STATIC_LIBSTDCXX=ON
	PATH="$(abspath $(BIN)):$$PATH" auditwheel repair --wheel-dir dist build/dist/*.whl \
	  || { echo 'no manylinux tag, see above: the wheel runs where the C library is as new as here' >&2; \
	       mkdir -p dist && cp build/dist/*.whl dist; }
	cp build/dist/*.tar.gz dist

# Those of a release, for CPython 3.11 to 3.14 on x86-64 and ARM, tried on the Pythons that Debian has: as root, on Debian on x86-64. Debian has no 3.12;
# PYTHONS="/path/to/python3.12 ..." names interpreters of this machine.
wheels:
	.ci/make-wheels

clean:
	rm -rf $(VENV) .venv-rivals build dist

# --without-pip and `pip --python`: works also where Python ships without ensurepip (Debian without python3-venv). pip comes
# after: with .venv/bin in PATH, `pip install` and this Makefile's python3 are then those of .venv.
$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "p2psgd needs Python 3.11 or newer, and $(PYTHON) is $$($(PYTHON) --version 2>/dev/null || echo not there): give" \
	    "another one, make PYTHON=python3.12, say" >&2; exit 1; }
	$(PYTHON) -m venv --without-pip $(VENV)
	$(PIP) install $(QUIET) pip

$(VENV)/.ready: $(NATIVE) | $(BIN)/python
	@echo "building the native core: a minute or so"
	$(PIP) install $(QUIET) --editable .
	touch $@

# The extras named in pyproject.toml, without building the native core once more.
$(VENV)/.%: $(VENV)/.ready
	$(BIN)/python -c 'import tomllib; \
	  print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]["$*"], sep="\n")' \
	  > $(VENV)/$*.txt
	$(if $(findstring torch,$*),$(say_torch_sizes))
	$(PIP) install $(QUIET) --requirement $(VENV)/$*.txt
	touch $@
