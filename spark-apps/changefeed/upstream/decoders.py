"""Which decoders of rows there are. They stand apart from `choice`: they load much, and a hold decodes no row."""

from __future__ import annotations

from changefeed.schema.table_info import TableInfo
from changefeed.upstream.contract import Decoder
from changefeed.upstream.postgresql.values.decoder import PgoutputRows
from changefeed.upstream.tikv.row.decoder import TidbRows

#: By `TableInfo.upstream`.
DECODERS: dict[str, Decoder] = {"tikv": TidbRows(), "postgresql": PgoutputRows()}


def decoder_of(table: TableInfo) -> Decoder:
    """The decoder of the table's rows."""
    return DECODERS[table.upstream]
