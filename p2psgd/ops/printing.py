"""Standard output of a command."""

from __future__ import annotations

import os
import sys


def print_text(text: str) -> bool:
    """Write a text and a newline; False if nobody reads on, as in `p2psgd status | head`."""
    try:
        sys.stdout.write(f"{text}\n")
        sys.stdout.flush()
    except BrokenPipeError:  # Typer would exit with 1
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return False
    return True
