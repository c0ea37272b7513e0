"""Rows as TiDB writes them, as an upstream's decoder."""

from __future__ import annotations

from changefeed.upstream.tikv.row.checksums import wrong_rows
from changefeed.upstream.tikv.row.defaults import absent_value
from changefeed.upstream.tikv.row.rowv2 import check_supported, decode_rows
from changefeed.upstream.tikv.tidb.keys import moved


class TidbRows:
    """See the functions."""

    pads_char = False
    check_supported = staticmethod(check_supported)
    rows = staticmethod(decode_rows)
    absent_value = staticmethod(absent_value)
    wrong_rows = staticmethod(wrong_rows)
    moved = staticmethod(moved)
