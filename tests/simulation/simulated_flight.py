"""Pullers' memory as tasks of other machines see it: the product's own at both ends, no network between them.

Each fetch may fail, as long as there are faults. A puller that has ended gives nothing any more.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from random import Random
from typing import Any, NamedTuple

import pyarrow as pa
from changefeed.eventstore import flight
from changefeed.eventstore.arena import SharedArena, SlotGone
from changefeed.eventstore.flight import RemoteArenas
from changefeed.eventstore.slices import SegmentSlice
from changefeed.wire.owner import RunKey

FAILS = "the network fails"


class Network:
    """The network of a world, with dice of its own, so that the others stay as they are."""

    def __init__(self, seed: int, is_healed: Callable[[], bool]) -> None:
        self._dice = Random(f"{seed} flight")
        self.is_used = self._dice.random() < 0.3  # the state is in a store
        self._fails = self._dice.choice((0.0, 0.1, 0.5))
        self._is_healed = is_healed
        self.served: dict[str, SharedArena] = {}  # by address
        self._addresses = 0

    def serve(self, arena: SharedArena) -> Any:
        """Implements eventstore.writer.Serve."""
        self._addresses += 1
        return Served(self, f"puller:{self._addresses}", arena)

    def arenas(self) -> RemoteArenas | None:
        """Return the arenas of a new task. None: it is everywhere at home."""
        return _Elsewhere(self) if self.is_used and self._dice.random() < 0.7 else None

    def fails(self) -> bool:
        return not self._is_healed() and self._dice.random() < self._fails


class Served:
    """Takes the place of ArenaServer."""

    def __init__(self, network: Network, address: str, arena: SharedArena) -> None:
        self.address = address
        self._network = network
        network.served[address] = arena

    def close(self) -> None:
        del self._network.served[self.address]


class _Elsewhere(RemoteArenas):
    def __init__(self, network: Network) -> None:
        super().__init__(RunKey(b"", b""), "elsewhere")
        self._network = network

    def _connect(self, address: str) -> Any:
        return _Connection(self._network, address)


class _Chunk(NamedTuple):
    data: pa.RecordBatch


class _Connection(NamedTuple):
    network: Network
    address: str

    def do_get(self, ticket: Any, _: object) -> list[_Chunk]:
        piece = SegmentSlice.model_validate_json(ticket.ticket)
        if self.network.fails():
            raise OSError(FAILS)
        if self.address not in self.network.served:
            raise OSError("nobody is there")
        room = threading.BoundedSemaphore()
        try:
            return [_Chunk(batch) for batch in flight.messages_of(self.network.served[self.address], piece, room)]
        except SlotGone as gone:
            raise OSError(str(gone)) from gone
