"""How a sink's files are written: as its changefeed's log says, or where that can't be read by TiCDC's defaults."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from changefeed.errors import ChangefeedError
from changefeed.objectstore import ObjectStore
from changefeed.objectstore.open import open_store
from changefeed.owner.places import LOG
from changefeed.owner.transaction_log.log import Log
from changefeed.verify.sink.files import owner
from changefeed.verify.sink.formats import Format, read_formats

_CSV = Format(
    protocol="csv",
    delimiter=",",
    quote='"',
    null="\\N",
    terminator="\r\n",
    header=False,
    binary="base64",
    split_updates=True,
    time_zone="UTC",
)
_CANAL_JSON = replace(_CSV, protocol="canal-json", binary="latin-1")


def formats_of(store: ObjectStore) -> tuple[Callable[[str], Format], str]:
    """The format of each path; and why the log could not be asked, "" if it could."""
    try:
        state_store = open_store(owner(store).state_uri)
        formats = read_formats(state_store, LOG, Log(state_store, LOG).read().epoch.config["spec"])
    except (ChangefeedError, KeyError) as failure:
        return _assumed, getattr(failure, "message", "The log is empty.")
    return lambda path: formats.of(path)[0], ""


def _assumed(path: str) -> Format:
    return _CANAL_JSON if path.endswith(".json") else _CSV
