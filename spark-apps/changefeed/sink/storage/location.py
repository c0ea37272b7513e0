"""Where the files of a storage sink are."""

from __future__ import annotations

from pathlib import Path

from changefeed.objectstore import Location
from changefeed.objectstore.open import Store, beside, canonical, open_store
from changefeed.spec.field.secret import store_secret
from changefeed.spec.model import Changefeed

SINK_FIELD = "spec.sink.storage.uri"


def sink_location(changefeed: Changefeed, secrets_dir: Path | None = None) -> Location:
    """The sink's root, absolute."""
    storage = changefeed.storage
    return Location(canonical(storage.uri, SINK_FIELD), store_secret(storage.uri, storage.credentials, secrets_dir))


def generation_location(sink: Location, generation: int) -> Location:
    """Where a generation's files are: the sink itself, then `<sink>-gen-2`, `<sink>-gen-3`, ... beside it.

    Beside, not below: TiCDC's readers walk everything below a sink, and stop at a schema file that stands too deep.
    """
    return sink if generation == 1 else Location(beside(sink.uri, f"-gen-{generation}", SINK_FIELD), sink.secret)


def generation_folder(sink: Store, generation: int) -> Store:
    """The lock of the sink, which is held, is that of all its generations."""
    if generation == 1:
        return sink
    location = generation_location(sink.location, generation)
    return open_store(location.uri, SINK_FIELD, location.secret)
