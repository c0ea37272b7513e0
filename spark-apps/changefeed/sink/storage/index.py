"""`meta/CDC.index`: the name of a directory's last data file; readers read every number up to it.

See docs/sink-files.md.
"""

from __future__ import annotations

from collections.abc import Iterable

from changefeed.model.record import PlanEntry
from changefeed.objectstore import ObjectStore
from changefeed.sink.storage.grow import LastWritten, grow
from changefeed.sink.storage.layout import index_file, index_of


def ends(entries: Iterable[PlanEntry]) -> list[tuple[str, int, str]]:
    """(directory, index, path) of the last entry in each directory: what its index file says."""
    last = {entry.output["directory"]: entry.output for entry in entries}
    return [(directory, output["index"], output["path"]) for directory, output in last.items()]


def write_index(store: ObjectStore, directory: str, index: int, path: str, last: LastWritten | None = None) -> bool:
    """Say that data file `path` of `directory`, which has `index`, and all before it exist. See `grow` for errors."""
    name = path.rpartition("/")[2]
    if index_of(name) != index or path != f"{directory}/{name}":
        raise ValueError(f"{path!r} is not data file {index} of {directory!r}")
    return grow(store, index_file(directory), index, f"{name}\n".encode(), _read, last)


def _read(body: bytes) -> int | None:
    return index_of(body.decode(errors="replace").rstrip("\n"))
