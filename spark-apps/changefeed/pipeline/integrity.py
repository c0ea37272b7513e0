"""Row checksums in the pipeline (`spec.integrity`): a row that is not what TiDB wrote is told, or ends the run."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from changefeed.errors import NeedsHuman
from changefeed.schema.row.checksums import wrong_rows
from changefeed.schema.table_info import TableInfo

_LOG = logging.getLogger(__name__)


def check_integrity(integrity: Mapping[str, Any], rows: pa.RecordBatch, table: TableInfo) -> None:
    """`integrity`: of the effective spec. `rows`: RAW_SCHEMA; both what each row is and what it was.

    Raises NeedsHuman, or logs one warning for all of them, as `onCorruption` says.
    """
    if integrity["level"] == "None":
        return
    for side in ("value", "old_value"):
        values = pc.fill_null(rows.column(side), b"")
        there = pc.greater(pc.binary_length(values), 0)
        keys, values = rows.column("key").filter(there), values.filter(there)
        wrong = wrong_rows(table, keys, values)
        if not len(wrong):
            continue
        first = keys[int(wrong[0])].as_py().hex()
        said = f"table {table.full_name}, key {first}: the row's checksum is not that of its content"
        if integrity["onCorruption"] == "Error":
            raise NeedsHuman(
                f"{said}.",
                "Compare the row with the upstream, run ADMIN CHECK TABLE, and fix it there; or let it pass with "
                "spec.integrity.onCorruption: Warn and a rewind (spec.restart): what was planned keeps its settings.",
            )
        _LOG.warning("%s; %d rows of this file are so.", said, len(wrong))
