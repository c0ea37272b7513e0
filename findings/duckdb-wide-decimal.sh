#!/bin/sh
# DuckDB 2.0.1 with a Parquet file of Apache Arrow (pyarrow 26.0.1).
#
# A Parquet column of DECIMAL(65, 30), the widest that MySQL and TiDB have, is read as DOUBLE without a word: 65 digits
# become 16. One of DECIMAL(38, 10) stays what it is. polars 2.1.0 refuses the wide one, Arrow reads it exactly.
#
# Seen on 2026-11-29 (Python 3.11):
#   DuckDB: DECIMAL(38,10) 1234567890123456789012345678.0123456789
#   DuckDB: DOUBLE 1.234567890123457e+34
#   polars: InvalidOperationError
#   Arrow: decimal256(65, 30) 12345678901234567890123456789012345.000000000000000000000000000001
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q duckdb==2.0.1 polars==2.1.0 pyarrow==26.0.1
cat >"$folder/seen.py" <<'PYTHON'
import sys
from decimal import Decimal, localcontext

import duckdb
import polars
import pyarrow as pa
import pyarrow.parquet as pq

with localcontext(prec=70):
    narrow = Decimal("1234567890123456789012345678.0123456789")
    wide = Decimal("12345678901234567890123456789012345") + Decimal(1).scaleb(-30)
    columns = {"narrow": pa.array([narrow], pa.decimal128(38, 10)), "wide": pa.array([wide], pa.decimal256(65, 30))}
for name, values in columns.items():
    pq.write_table(pa.table({"d": values}), f"{sys.argv[1]}/{name}.parquet")
    print("DuckDB:", *duckdb.sql(f"SELECT typeof(d), d FROM '{sys.argv[1]}/{name}.parquet'").fetchall()[0])
file = f"{sys.argv[1]}/wide.parquet"
try:
    print("polars:", polars.read_parquet(file)["d"][0])
except Exception as error:
    print("polars:", type(error).__name__)
read = pq.read_table(file)["d"]
print("Arrow:", read.type, f"{read[0].as_py():f}")
PYTHON
"$folder/venv/bin/python" "$folder/seen.py" "$folder" | tee "$folder/seen"
sed -n 's/^#   //p' "$0" | diff - "$folder/seen"
