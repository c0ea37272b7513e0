"""Every name in the sink's own statements is quoted: `plan` is a word of its own to some servers."""

from __future__ import annotations

import re

import numpy as np
import pytest
from changefeed.model.position import OP_DELETE, OP_UPDATE
from changefeed.sink.contract import Claim, EntryId
from changefeed.sink.mysql.ddl_record import DdlId, DdlTable, Subject
from changefeed.sink.mysql.definitions import found
from changefeed.sink.mysql.progress import ProgressTables
from changefeed.sink.mysql.rows.keys import TableKeys
from changefeed.sink.mysql.rows.statements import ChunkStatements
from changefeed.sink.mysql.syncpoint import SyncpointStatements
from sink_mysql_changes import ITEMS, Change, changes_of

CLAIM, AT, DDL = Claim("cf", 7, 1, "n", 1), EntryId(1, 2), DdlId("cf", 10, 3)
PROGRESS, DDLS, SYNCPOINTS = ProgressTables("own", b"FOR UPDATE"), DdlTable("own"), SyncpointStatements("cf", 60)
TABLE, DATABASE = Subject("shop", "t"), Subject("shop")
NAMES = [("shop", "t"), ("shop", "u")]
_QUOTED = re.compile(rb"x?'(?:[^']|'')*'|`[^`]*`")


def rows() -> list[bytes]:
    row = (1, "a", 2)
    changes = changes_of(ITEMS, [Change(10, OP_DELETE, row), Change(11, OP_UPDATE, (2, "b", 3), (2, "b", 2))])
    keys = TableKeys.of(ITEMS)
    return ChunkStatements(keys, changes, keys.moved(changes), False).of(np.arange(len(changes)))


STATEMENTS = [
    *PROGRESS.create(),
    PROGRESS.read(CLAIM),
    PROGRESS.add(CLAIM),
    PROGRESS.claim(CLAIM),
    PROGRESS.add_nodes(CLAIM, AT, 1, b"x"),
    PROGRESS.has_nodes(CLAIM, AT, 1),
    PROGRESS.nodes(CLAIM, AT),
    *PROGRESS.finish(CLAIM, AT, 9),
    DDLS.create(),
    DDLS.read(DDL),
    DDLS.begin(DDL, ["-"], b"x"),
    DDLS.end(DDL),
    DDLS.open_builds("cf"),
    DDLS.later("cf", 1, 2),
    *SYNCPOINTS.create(),
    SYNCPOINTS.add(1, 2),
    SYNCPOINTS.remove_old(),
    *(subject.find for subject in (TABLE, DATABASE)),
    *(subject.show for subject in (TABLE, DATABASE)),
    TABLE.jobs,
    found.columns_query(NAMES, True),
    found.indexes_query(NAMES[:1]),
    found.partitions_query(NAMES),
    *rows(),
]


@pytest.mark.parametrize("statement", STATEMENTS, ids=[each.decode()[:60] for each in STATEMENTS])
def test_names_are_quoted(statement: bytes) -> None:
    """Words of SQL are in capitals here, so what is not, and stands outside of quotes, is a name."""
    bare = _QUOTED.sub(b"", statement)
    assert [word for word in re.findall(rb"[A-Za-z_]+", bare) if word != word.upper()] == []
