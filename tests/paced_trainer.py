"""Run p2psgd, but rest after each gradient: nodes that train for as long as a test lasts leave it the cores.

python tests/paced_trainer.py train --recipe digits --seconds 600
"""

from __future__ import annotations

import time
from typing import Any, Final

from p2psgd.cli.app import main
from p2psgd.recipes.gradients import Gradients

REST_S: Final = 0.05  # twenty mini-batches a second at most
REST_SHARE: Final = 3  # three quarters of the time, if a gradient takes long

take = Gradients.take


def take_and_rest(*arguments: Any, **options: Any) -> Any:
    began = time.monotonic()
    loss = take(*arguments, **options)
    time.sleep(max(REST_S, REST_SHARE * (time.monotonic() - began)))
    return loss


if __name__ == "__main__":
    Gradients.take = take_and_rest  # type: ignore[method-assign]
    main()
