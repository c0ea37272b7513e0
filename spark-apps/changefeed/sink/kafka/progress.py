"""Which entries of a dispatcher are written: a message in a compacted topic, in the same transaction as the rows.

Pure: the content of the messages, and what a claim may do after reading them.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import Enum

from changefeed.errors import Fenced, NeedsHuman
from changefeed.sink.contract import Claim, EntryId


@dataclass(frozen=True)
class ProgressRecord:
    """One dispatcher's progress: its newest claim, and the last entry whose rows are in the topics; None: none yet."""

    epoch: int
    nonce: str
    writer: int
    done: EntryId | None

    @classmethod
    def of(cls, claim: Claim, done: EntryId | None) -> ProgressRecord:
        return cls(claim.epoch, claim.nonce, claim.writer, done)


class ClaimVerdict(Enum):
    WRITE = "no row of the entry is in the topics"
    SKIP = "all of them are"


def decide(found: ProgressRecord | None, claim: Claim, entry: EntryId) -> ClaimVerdict:
    """What `claim` does with the entry. Raises Fenced for who has been given up."""
    if found is None:
        return ClaimVerdict.WRITE
    if claim.gives_way_to(found.epoch, found.nonce, found.writer):
        raise Fenced(
            f"Epoch {claim.epoch}, writer {claim.writer} wants to write dispatcher {claim.dispatcher} of changefeed "
            f"{claim.changefeed}, which epoch {found.epoch}, writer {found.writer} has claimed."
        )
    return ClaimVerdict.WRITE if found.done is None or found.done < entry else ClaimVerdict.SKIP


def progress_key(claim: Claim) -> bytes:
    """Return the key of the messages that say how far the dispatcher's rows are written."""
    return f"{claim.changefeed}/{claim.dispatcher}".encode()


def encode(progress: ProgressRecord) -> bytes:
    said = {"epoch": progress.epoch, "nonce": progress.nonce, "writer": progress.writer, "done": progress.done}
    return json.dumps(said, separators=(",", ":")).encode()


def decode(value: bytes) -> ProgressRecord:
    """Raises NeedsHuman for a message that `encode` has not made."""
    try:
        said = json.loads(value)
        done = said["done"]
        return ProgressRecord(said["epoch"], said["nonce"], said["writer"], None if done is None else EntryId(*done))
    except (KeyError, TypeError, ValueError) as error:
        raise NeedsHuman(
            f"A message of the progress topic is not ours ({type(error).__name__}: {error}): {value[:200]!r}.",
            "Give the changefeed a progress topic of its own.",
        ) from None
