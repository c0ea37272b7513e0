"""Which files of a storage sink have expired: those of days long before the checkpoint. Pure.

Like TiCDC's `file-expiration-days`, with one exception: TiCDC deletes anything with an
old date anywhere in its path, including a table with such a name.
"""

from __future__ import annotations

from changefeed.sink.storage.layout import directory_of_index, index_of, parse_directory


def is_expired(path: str, before: str) -> bool:
    """Whether it is a data file, or an index, in the directory of a day before `before` (YYYY-MM-DD)."""
    directory = directory_of_index(path)
    if directory is None:
        directory, _, name = path.rpartition("/")
        if index_of(name) is None:
            return False
    found = parse_directory(directory, "day")
    return found is not None and found.date < before
