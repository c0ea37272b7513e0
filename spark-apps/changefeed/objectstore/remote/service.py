"""What is specific to one cloud's object stores."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from changefeed.spec.field.location import BucketLocation

ANY_NAME = re.compile("(?!)")  # finds nothing
#: Gives obstore's client for a location, the folder of its Secret or None, and what `store` says of time and retries.
Opens = Callable[[BucketLocation, Path | None, Mapping[str, Any]], Any]


@dataclass(frozen=True)
class Service:
    """Holds what differs between clouds. Codes are those in answers' bodies; a status that says the same needs none."""

    open: Opens
    version: str  # what obstore calls the thing that a compare-and-swap goes by
    bucket: str  # its word for a bucket
    unfit: re.Pattern[str]  # found in a part of a name that the store would take for another one's
    conditions: str  # what it must take, for messages
    allow: str  # next step when the credentials are good but may not do that
    credentials: str  # next step when they are not good, or there are none
    taken: frozenset[str] = frozenset()  # of a create whose name is taken, besides status 412
    gone: frozenset[str] = frozenset()  # of a swap when nothing stands there
    locked: frozenset[str] = frozenset()  # of a swap, with 412, that is refused whatever its condition says
    no_bucket: frozenset[str] = frozenset()
    bad_credentials: frozenset[str] = frozenset()  # besides 401 and 403
    not_allowed: frozenset[str] = frozenset()
    other_region: frozenset[str] = frozenset()
    cut_short: frozenset[str] = frozenset()  # said with 400 of a body that did not arrive whole; nothing was written
