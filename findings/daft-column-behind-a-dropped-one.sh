#!/bin/sh
# daft 0.7.26 with Iceberg tables of pyiceberg 0.12.0.
#
# A column is dropped. From files that were written before, daft then reads no column that stood behind it: "failed to
# fill whole buffer", whatever its type. Those before it are read, and so are all once the rows are written again.
# pyiceberg reads the same table.
#
# Seen on 2026-11-29 (Python 3.11):
#   before: [(1, 7, 'x')]
#   pyiceberg: [(1, 'x')]
#   daft, id: [1]
#   daft, note: DaftCoreException
#   daft, note, written again: ['x']
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q daft==0.7.26 "pyiceberg[sql-sqlite]==0.12.0"
cat >"$folder/seen.py" <<'PYTHON'
import sys

import daft
import pyarrow as pa
from pyiceberg.catalog.memory import InMemoryCatalog
from pyiceberg.schema import Schema
from pyiceberg.types import IntegerType, LongType, NestedField, StringType

catalog = InMemoryCatalog("c", warehouse=f"file://{sys.argv[1]}/lake")
catalog.create_namespace("shop")
fields = [("id", LongType()), ("old", IntegerType()), ("note", StringType())]
schema = Schema(*(NestedField(number, name, kind, required=False) for number, (name, kind) in enumerate(fields, 1)))
table = catalog.create_table("shop.orders", schema)
table.append(pa.Table.from_pylist([{"id": 1, "old": 7, "note": "x"}], schema=table.schema().as_arrow()))
print("before:", [tuple(row.values()) for row in daft.read_iceberg(table).to_pylist()])
with table.update_schema() as update:
    update.delete_column("old")
print("pyiceberg:", [tuple(row.values()) for row in table.scan().to_arrow().to_pylist()])


def show(what, name):
    try:
        print(f"daft, {what}:", daft.read_iceberg(table).select(name).to_pydict()[name])
    except Exception as error:
        print(f"daft, {what}:", type(error).__name__)


show("id", "id")
show("note", "note")
table.overwrite(table.scan().to_arrow())
show("note, written again", "note")
PYTHON
"$folder/venv/bin/python" "$folder/seen.py" "$folder" 2>"$folder/said" | tee "$folder/seen"
sed -n 's/^#   //p' "$0" | diff - "$folder/seen"
