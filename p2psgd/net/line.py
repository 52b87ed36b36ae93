"""One line of the list of hosts, and the diallers of the hosts that it stands for.

A name is resolved anew at most once a patience as long as one of its hosts is not linked, and every twelve
patiences else. Addresses that are gone are no longer dialled; while a name does not resolve, those it had
last are.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from typing import Final

from p2psgd.discovery.address import Address
from p2psgd.discovery.naming import Host, UnknownNameError, hosts_of, is_numeric, is_own, look_up
from p2psgd.net.dialler import FIRST_DELAY_S, Dialler

LOOK_UP_TIMEOUT_S: Final = 10.0
RELAXED_PATIENCES: Final = 12


class Line:
    """`begin` starts dialling a host and `end` ends it; `words`: why the name does not resolve."""

    def __init__(
        self,
        address: Address,
        *,
        count: int | None,
        own: Sequence[Address],
        patience_s: float,
        now: Callable[[], float],
        begin: Callable[[str, Host], Dialler],
        end: Callable[[Dialler], None],
        linked: Callable[[int], object],
    ) -> None:
        """`count`: of hosts other than this node that it stands for, if known; see `is_own` for `own`."""
        self.address = address
        self.called = str(address)
        self.host: Host = ()
        self.words = ""
        self.since = now()
        self.node: int | None = None
        self.hinted: int | None = None
        self.ourselves = count == 0
        self.diallers: dict[Host, Dialler] = {}
        self._known = count
        self._own = own
        self._patience_s = patience_s
        self._begin = begin
        self._end = end
        self._linked = linked

    @property
    def others(self) -> int:
        """How many hosts other than this node it stands for: the most that were seen, for whoever is to
        found a run with them may only be out of sight.
        """
        if self.ourselves:
            return 0
        ourselves = sum(dialler.ourselves for dialler in self.diallers.values())
        return max(0, (1 if self._known is None else self._known) - ourselves)

    def settle(self) -> bool:
        """Begin at once if there is nothing to resolve, and tell whether that was so."""
        if is_numeric(self.address):
            self.diallers[()] = self._begin(self.called, (self.address,))
        return bool(self.diallers)

    async def run(self) -> None:
        """Resolve the name until cancelled."""
        delay_s = FIRST_DELAY_S
        while True:
            try:
                found = await look_up(self.address, timeout_s=LOOK_UP_TIMEOUT_S)
            except UnknownNameError as error:
                self.words = str(error)
            else:
                self.words = ""
                self._take(hosts_of(found))
                delay_s = self._patience_s
            if self.ourselves or (self.diallers and all(map(self._is_linked, self.diallers.values()))):
                delay_s = RELAXED_PATIENCES * self._patience_s
            await asyncio.sleep(delay_s * random.uniform(0.5, 1.0))
            delay_s = min(2 * delay_s, self._patience_s)

    def _is_linked(self, dialler: Dialler) -> bool:
        return dialler.ourselves or (dialler.node is not None and self._linked(dialler.node) is not None)

    def _take(self, hosts: list[Host]) -> None:
        """What the name stands for now."""
        others = [host for host in hosts if not any(is_own(each, self._own) for each in host)]
        self.ourselves = not others and len(hosts) == 1
        self._known = max(self._known or 0, len(others))
        one = len(hosts) == 1  # then there is one dialler, wherever that host is
        wanted: dict[Host, Host] = {() if one else host: host for host in others}
        for key in self.diallers.keys() - wanted.keys():
            self._end(self.diallers.pop(key))
        for key, host in wanted.items():
            dialler = self.diallers.get(key)
            if dialler is None:
                called = f"{self.called} ({host[0].host})" if key else self.called
                self.diallers[key] = self._begin(called, host)
            else:
                dialler.move(host)
