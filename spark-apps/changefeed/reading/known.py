"""What readers without a resource know about a sink: what its changefeed's log says or, if that can't be read, TiCDC's
defaults.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from changefeed.errors import ChangefeedError
from changefeed.log.log import Log
from changefeed.log.state import State
from changefeed.objectstore import ObjectStore
from changefeed.objectstore.open import open_store
from changefeed.reading.failures import NotVerifiable
from changefeed.reading.layout.files import owner
from changefeed.reading.rows.formats import Format, read_formats

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
_BINARY = {"csv": "base64", "json": "latin-1", "parquet": ""}
_PROTOCOLS = {"json": "canal-json"}
_COMPRESSIONS = {"gz": "gzip", "zst": "zstd"}


@dataclass(frozen=True)
class KnownFormats:
    """`state`: the log, None where it can't be read. `format_of`: of a data file's path; `unknown`: why it is assumed.
    `refused`: the log says that the files are of a kind which can't be read back.
    """

    format_of: Callable[[str], Format]
    state: State | None = None
    unknown: str = ""
    refused: NotVerifiable | None = None


def known_of(store: ObjectStore) -> KnownFormats:
    """What is known of the sink in a store."""
    try:
        state_store = open_store(owner(store).state_uri)
        state = Log(state_store).read()
        spec = state.epoch.config["spec"]
    except (ChangefeedError, KeyError) as failure:
        return KnownFormats(_assumed, unknown=getattr(failure, "message", "The log is empty."))
    try:
        formats = read_formats(state_store, spec)
    except NotVerifiable as refused:
        return KnownFormats(_assumed, state, refused.message, refused)
    return KnownFormats(lambda path: formats.of(path)[0], state)


def _assumed(path: str) -> Format:
    kind, _, compression = path.rpartition("/")[2].partition(".")[2].partition(".")
    return replace(
        _CSV,
        protocol=_PROTOCOLS.get(kind, kind),
        binary=_BINARY[kind],
        compression=_COMPRESSIONS.get(compression, "none"),
    )
