"""Which files of a storage sink have expired: those of days long before the checkpoint. Pure.

Like TiCDC's `file-expiration-days` (facts, ticdc-compatibility 1.1), with one exception: TiCDC deletes anything with an
old date anywhere in its path, including a table with such a name.
"""

from __future__ import annotations

import re

from changefeed.sink.storage.layout import index_of, parse_index_path

_DAY = re.compile(r"\d{4}-\d{2}-\d{2}")


def is_expired(path: str, before: str) -> bool:
    """Whether it is a data file, or an index, in the directory of a day before `before` (YYYY-MM-DD)."""
    directory = parse_index_path(path)
    if directory is None:
        directory, _, name = path.rpartition("/")
        if index_of(name) is None:
            return False
    day = directory.rpartition("/")[2]
    return _DAY.fullmatch(day) is not None and day < before
