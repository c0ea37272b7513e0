#!/bin/sh
# deltalake (delta-rs) 1.6.6 with a table that has a timestamp without time zone.
#
# A table property is set. The commit also puts the reader feature variantType into the table's protocol, though no column
# has that type: readers that don't know it must refuse the table from then on.
#
# Seen on 2026-11-30 (Python 3.11):
#   made: 3/7 ['timestampNtz']
#   a column added: 3/7 ['timestampNtz']
#   a property set: 3/7 ['timestampNtz', 'variantType']
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q deltalake==1.6.6
cat >"$folder/seen.py" <<'PYTHON'
import sys

from deltalake import DeltaTable, Field, Schema

path = f"{sys.argv[1]}/table"


def show(what):
    protocol = DeltaTable(path).protocol()
    versions = f"{protocol.min_reader_version}/{protocol.min_writer_version}"
    print(f"{what}:", versions, sorted(protocol.reader_features or ()))


DeltaTable.create(path, Schema([Field("id", "long"), Field("moment", "timestamp_ntz")]))
show("made")
DeltaTable(path).alter.add_columns([Field("note", "string")])
show("a column added")
DeltaTable(path).alter.set_table_properties({"delta.logRetentionDuration": "interval 60 days"})
show("a property set")
PYTHON
"$folder/venv/bin/python" "$folder/seen.py" "$folder" 2>"$folder/said" | tee "$folder/seen"
sed -n 's/^#   //p' "$0" | diff - "$folder/seen"
