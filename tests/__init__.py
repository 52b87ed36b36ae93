from typing import Final

# How long a test waits at most for what must happen; only a hang misses it. A machine whose cores are all
# taken needs a minute for what takes a second. The limit of a whole test is in pyproject.toml.
DEADLINE_S: Final = 240.0
