"""Tasks of the event loop: what becomes of one that fails."""

from __future__ import annotations

import asyncio


def raise_failure(task: asyncio.Task[None]) -> None:
    """Done callback: a task's failure reaches the loop's exception handler now, not when it is collected, and
    as the task's, so that an OSError of it is not taken for a connection's.
    """
    if not task.cancelled() and (error := task.exception()) is not None:
        context = {"message": f"the task {task.get_name()} has failed", "exception": error, "task": task}
        task.get_loop().call_exception_handler(context)
