"""Tests at start whether a store keeps its promises, with many concurrent writers (docs/design/rules.md, Rule 28).

A store that checks and then writes passes every sequential test; only a race exposes it.
"""

from __future__ import annotations

import contextlib
import secrets
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from changefeed.errors import ChangefeedError, Conflict, NeedsHuman, NotFound, OutcomeUnknown, Transient, Unavailable
from changefeed.objectstore import ObjectStore

#: With it begin the names of the objects that a probe makes and removes.
PROBE = ".changefeed-probe"
_WRITERS = 20
_START = b"start"


def probe(store: ObjectStore, folder: str, rounds: int, swaps: bool) -> None:
    """Race `_WRITERS` writers for an object below `folder`, `rounds` times by create and, if `swaps`, by swap.

    Raises NeedsHuman when not exactly one of them wins, or when the store can't be used as it is set up; Unavailable
    when it doesn't answer.
    """
    with ThreadPoolExecutor(_WRITERS) as pool:
        for swap in (False, True) if swaps else (False,):
            for _ in range(rounds):
                _race(store, pool, f"{folder}{secrets.token_hex(8)}", swap)


def _race(store: ObjectStore, pool: ThreadPoolExecutor, path: str, swap: bool) -> None:
    try:
        etag = store.swap(path, _START, None) if swap else None
        start = threading.Barrier(_WRITERS)

        def write(writer: int) -> ChangefeedError | None:
            start.wait()
            body = b"%d" % writer
            try:
                store.create(path, body) if etag is None else store.swap(path, body, etag)
            except (Conflict, OutcomeUnknown, Transient) as error:
                return error
            return None

        outcomes = list(pool.map(write, range(_WRITERS)))
        stands = _standing(store, path, outcomes)
    except NotFound:
        raise _broken(store, swap, "an object was gone right after it had been written") from None
    except (OutcomeUnknown, Transient) as error:
        raise Unavailable(error.message, error.next_step or "Look at the store, then start again.") from None
    finally:
        with contextlib.suppress(OutcomeUnknown, Transient, Unavailable, NeedsHuman):  # clean_leftovers() takes it
            store.delete(path)
    _judge(outcomes, stands, lambda what: _broken(store, swap, what))


def _standing(store: ObjectStore, path: str, outcomes: list[ChangefeedError | None]) -> bytes:
    """What can be read now. Raises NotFound only if somebody must have written it; why, if nobody got through."""
    unsure = [each for each in outcomes if isinstance(each, OutcomeUnknown | Transient)]
    try:
        body = store.get(path).body
    except NotFound:
        if None not in outcomes and unsure:
            raise unsure[0] from None
        raise
    if body == _START and len(unsure) == len(outcomes):
        raise unsure[0]
    return body


def _judge(outcomes: list[ChangefeedError | None], stands: bytes, broken: Callable[[str], ChangefeedError]) -> None:
    """`outcomes` by writer, None for one that was told it had won; `stands`: what can be read afterwards."""
    winners = [writer for writer, outcome in enumerate(outcomes) if outcome is None]
    unsure = [writer for writer, outcome in enumerate(outcomes) if isinstance(outcome, OutcomeUnknown | Transient)]
    if len(winners) > 1:
        raise broken(f"{len(winners)} of {_WRITERS} writers were told that they alone had won")
    if stands not in [b"%d" % writer for writer in winners or unsure]:
        if not winners and not unsure:
            raise broken(f"all of {_WRITERS} writers were refused")
        raise broken("what stands there is not what the winner wrote")


def _broken(store: ObjectStore, swap: bool, what: str) -> NeedsHuman:
    call = "compare-and-swap (PUT with If-Match)" if swap else "create-if-absent (PUT with If-None-Match: *)"
    if store.uri.startswith("gs:"):
        call = f"{call.partition(' (')[0]} (PUT with x-goog-if-generation-match)"
    if store.uri.startswith("file:"):
        call, instead = "create-if-absent (a hard link)", "Choose a folder on a local file system"
    else:
        instead = "Use a store with atomic conditional writes, such as AWS S3, MinIO or versitygw"
    return NeedsHuman(
        f"{store.uri} does not keep {call}: {what}. Two drivers could overwrite each other's files there.",
        f"{instead}; nothing was started.",
    )
