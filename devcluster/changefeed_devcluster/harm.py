"""`changefeed-devcluster harm`: disturb a running development cluster, each way a command.

A real cluster does all of it to a changefeed. Every command answers one JSON line and exits 0; 2 means that the cluster
refused what was asked, 69 that none answers.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

import grpc
from cyclopts import App, Parameter

from . import keys
from .certificates import client_channel
from .control import HARM_METHOD
from .pd.heartbeats import INTERVAL_S
from .pd.regions import ELECTION_S
from .terminal import UNAVAILABLE, Amount, CommandFailed, say

_ANSWER_S = 10.0

Key = Annotated[
    str | None, Parameter(help="A raw key in hex; without it, the middle of the table's region with the most handles.")
]
Store = Annotated[int | None, Parameter(help="Id of a store; without it, all.")]
Seconds = Annotated[Amount | None, Parameter(help="How long it lasts; without it, until `harm heal`.")]
Found = list[dict[str, Any]]


@Parameter(name="*")
@dataclass(frozen=True)
class At:
    """Which cluster."""

    pd: Annotated[str, Parameter(help="The cluster's address, as `start` printed it.")]
    tls: Annotated[Path | None, Parameter(help="The folder of certificates that `start --tls` was given.")] = None


harm = App(name="harm", help="Disturb a running development cluster: what it answers is one JSON line.")


@harm.command
def regions(*, at: At) -> None:
    """List the regions: id, borders as hex of raw keys, version, leader store, stores."""
    say(**_harm(at, "regions"))


@harm.command
def split(*, at: At, key: Key = None) -> None:
    """Split a region in two.

    The right part keeps the id. Every change data registration of the region ends with `epoch_not_match` that names
    both parts, and calls with the old epoch are refused. Answers with the two regions.
    """
    say(**_harm(at, "split", key=_key(at, key)))


@harm.command
def merge(*, at: At, left: int | None = None) -> None:
    """Merge a region into its right neighbour.

    The neighbour keeps its id and leader and takes all keys; region `left` is gone. Every registration of both ends
    with `epoch_not_match` that names no region. Without `left`: two neighbours with the fewest handles of one table.
    Answers with the merged region.
    """
    found = _harm(at, "regions")["regions"]
    chosen, right = narrowest_pair(found) if left is None else (left, _right_of(found, left))
    say(**_harm(at, "merge", left=chosen, right=right))


@harm.command
def transfer(*, at: At, region: int | None = None, store: int | None = None) -> None:
    """Move a region's leadership to another store.

    Registrations end with `not_leader` that names the new one; the epoch stays. Without `region`: the one with the most
    handles; without `store`: the next one that has a peer. Answers with the region.
    """
    found = _harm(at, "regions")["regions"]
    chosen = _widest(found) if region is None else _named(found, region)
    stores = chosen["stores"]
    following = stores[(stores.index(chosen["leader_store"]) + 1) % len(stores)]
    say(**_harm(at, "transfer", region=chosen["id"], store=following if store is None else store))


@harm.command
def cut(*, at: At, store: Store = None, messages: int = 0) -> None:
    """Break connections of a store.

    At once, and all of them, as when a TiKV process dies and is back on its port; or, with `messages`, one change data
    stream after so many more messages of the store, which may be in the middle of a scan or of a transaction.
    """
    say(**_harm(at, "cut", store=store, messages=messages))


@harm.command
def kill(*, at: At, store: int, seconds: Seconds = None, election: Amount = ELECTION_S) -> None:
    """End a store: its streams end, and nobody answers at its address.

    The other stores go on as before. The regions that it led have another leader `election` seconds later, and PD knows
    it. After `seconds`, or with `harm heal`, the store is back at its address and leads nothing.
    """
    say(store=store, **_harm(at, "kill", store=store, seconds=seconds, election=election))


@harm.command(name="freeze-pd")
def freeze_pd(*, at: At, seconds: Seconds = None) -> None:
    """Let PD answer nothing, without any error: no timestamps, no look-ups.

    Resolved-ts stands still and then jumps; transactions wait for their timestamps.
    """
    say(**_harm(at, "freeze-pd", seconds=seconds))


@harm.command(name="restart-pd")
def restart_pd(*, at: At, heartbeat: Amount = INTERVAL_S) -> None:
    """Restart PD: its connections break, and it is back on its port at once.

    It knows a region's leader again once it has heard of it, of the last one after `heartbeat` seconds. With TLS, it
    reads ca.crt again, which it does at a start only.
    """
    say(**_harm(at, "restart-pd", heartbeat=heartbeat))


@harm.command
def upgrade(*, at: At, store: Store = None) -> None:
    """Restart a store with a newer version.

    Its resolved-ts go on as before: they stay at the start ts of the oldest PUT or DELETE lock. In a cluster with
    `--proposed-watermark` the newer version has the proposed mechanism, which counts once every store has it.
    """
    say(**_harm(at, "upgrade", store=store))


@harm.command
def watermark(*, at: At) -> None:
    """List the stores: version, whether its watermarks are the proposed ones, requests from others for them."""
    say(**_harm(at, "watermark"))


@harm.command
def stall(*, at: At, seconds: Seconds = None, store: Store = None) -> None:
    """Send no change data, without any error: the streams stay open and silent.

    Everything goes on being queued, and comes afterwards; beyond 512 MiB of a store, registrations end as `congested`.
    """
    say(**_harm(at, "stall", seconds=seconds, store=store))


@harm.command(name="stall-region")
def stall_region(*, at: At, region: int | None = None, seconds: Seconds = None) -> None:
    """Tell no resolved-ts of one region; its rows go on, and so do all other regions.

    Without `region`: the one with the most handles.
    """
    chosen = region or _widest(_harm(at, "regions")["regions"])["id"]
    say(region=chosen, **_harm(at, "stall-region", region=chosen, seconds=seconds))


@harm.command
def lock(*, at: At, key: Key = None, seconds: Seconds = None) -> None:
    """Hold a lock on a key, as a long transaction does, and roll it back at the end.

    The transaction is alive all the time: nobody may resolve its lock, and the region's resolved-ts stays below its
    start ts, which is the answer.
    """
    chosen = _key(at, key)
    say(key=chosen, **_harm(at, "lock", key=chosen, seconds=seconds))


@harm.command
def abandon(*, at: At, key: Key = None, ttl_ms: int = 0, committed: bool = False) -> None:
    """Abandon a transaction that has prewritten a key, as a TiDB server that died does.

    Its lock lives for `ttl-ms`; after that the watermark stands still until a client resolves it. With `committed` two
    rows from the key on are locked and the first, the primary, is committed: the second must be committed too, by
    whoever resolves it. Answers with the start ts, and the commit ts if there is one.
    """
    chosen = _key(at, key)
    say(key=chosen, **_harm(at, "abandon", key=chosen, ttl_ms=ttl_ms, committed=committed))


@harm.command
def delay(*, at: At, by: Amount, seconds: Seconds = None, store: Store = None) -> None:
    """Let `by` seconds pass between a change and its delivery, resolved-ts included: a slow network."""
    say(**_harm(at, "delay", by=by, seconds=seconds, store=store))


@harm.command(name="slow-scans")
def slow_scans(*, at: At, bytes_per_second: Amount, seconds: Seconds = None, store: Store = None) -> None:
    """Let the scans of a store come at so many bytes a second.

    What is written meanwhile is sent at once, so it overtakes the older rows and locks that the scan has read.
    """
    say(**_harm(at, "slow-scans", bytes_per_second=bytes_per_second, seconds=seconds, store=store))


@harm.command
def congest(*, at: At, seconds: Seconds = None, store: Store = None) -> None:
    """Have no room for change data, as if another client of the store did not read what it has asked for.

    Every registration of a region ends as `congested` with the region's next row, and every scan with its first batch.
    """
    say(**_harm(at, "congest", seconds=seconds, store=store))


@harm.command
def repeat(*, at: At, seconds: Seconds = None) -> None:
    """Send twice what a store may send twice.

    Each resolved-ts comes again, then an earlier one, then 0. A new registration's scan repeats as COMMITTED rows what
    came live before it, and some rows at or below the registration's checkpoint.
    """
    say(**_harm(at, "repeat", seconds=seconds))


@harm.command
def reorder(*, at: At, seconds: Seconds = None) -> None:
    """Send in any order what the protocol does not order.

    The rows of different regions, and the rows of a scan and the live rows of the same region. What one raft log orders
    stays, and no row comes after a resolved-ts at or above its commit ts.
    """
    say(**_harm(at, "reorder", seconds=seconds))


@harm.command
def heal(*, at: At) -> None:
    """End all that lasts.

    Stalls, delays, slow scans, congestion, repeats, reorders, cuts to come, and locks of `harm lock`.
    Stores that were killed are started, and PD thaws.

    Splits, merges, transfers and abandoned locks stay.
    """
    say(**_harm(at, "heal"))


def _harm(at: At, action: str, **arguments: Any) -> dict[str, Any]:
    return ask(at, HARM_METHOD, action, **arguments)


def ask(at: At, method: str, action: str, **arguments: Any) -> dict[str, Any]:
    """The cluster's answer. Raises CommandFailed when it refuses, or none is there."""
    body = json.dumps({"action": action, **arguments}).encode()
    with _channel(at) as channel:
        call: grpc.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(method)
        try:
            answer: dict[str, Any] = json.loads(call(body, timeout=_ANSWER_S))
        except grpc.RpcError as error:
            raise CommandFailed(
                f"No development cluster answers at {at.pd}: is it running? Its first output line names the address.",
                UNAVAILABLE,
            ) from error
    if not answer.pop("ok"):
        raise CommandFailed(str(answer["error"]))
    return answer


def _channel(at: At) -> grpc.Channel:
    if at.tls is None:
        return grpc.insecure_channel(at.pd)
    try:
        return client_channel(at.tls, at.pd)
    except OSError as error:
        raise CommandFailed(f"The certificates can't be read: {error.filename}: {error.strerror}") from error


# --- which region, which key ---


def _key(at: At, key: str | None) -> str:
    return widest_middle(_harm(at, "regions")["regions"]) if key is None else key


def _handles(region: dict[str, Any]) -> range:
    """The handles of a region that lies between two rows of one table; empty for any other."""
    prefix_length = len(keys.record_prefix(0))
    start, end = bytes.fromhex(region["start"]), bytes.fromhex(region["end"])
    if len(start) == len(end) == prefix_length + 8 and start[:prefix_length] == end[:prefix_length]:
        return range(keys.handle_of(start), keys.handle_of(end))
    return range(0)


def _widest(found: Found) -> dict[str, Any]:
    widest = max(found, key=lambda region: len(_handles(region)))
    if len(_handles(widest)) < 2:
        raise CommandFailed("No region lies between two rows of one table: say which one (`harm regions` lists them).")
    return widest


def widest_middle(found: Found) -> str:
    """The hex key in the middle of the region that spans the most handles of one table, from its two border keys."""
    widest = _widest(found)
    handles = _handles(widest)
    return str(widest["start"][:-16]) + keys.encode_int(handles[len(handles) // 2]).hex()


def narrowest_pair(found: Found) -> tuple[int, int]:
    """The ids of two neighbours that lie between rows of one table, with the fewest handles together."""
    pairs = [
        (len(_handles(left)) + len(_handles(right)), left["id"], right["id"])
        for left, right in pairwise(found)
        if _handles(left) and _handles(right) and _handles(left).stop == _handles(right).start
    ]
    if not pairs:
        raise CommandFailed("No two regions lie between rows of one table: say which one with --left.")
    return min(pairs)[1:]


def _right_of(found: Found, left: int) -> int:
    _named(found, left)
    for one, following in pairwise(found):
        if one["id"] == left:
            return int(following["id"])
    raise CommandFailed(f"Region {left} is the last one, nothing is right of it.")


def _named(found: Found, region: int) -> dict[str, Any]:
    for one in found:
        if one["id"] == region:
            return one
    raise CommandFailed(f"There is no region {region} (`harm regions` lists them).")
