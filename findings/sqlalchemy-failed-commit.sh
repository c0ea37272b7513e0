#!/bin/sh
# SQLAlchemy 2.1.9 with SQLite, and pyiceberg 0.12.0, whose SqlCatalog is built on it.
#
# While another process has an unfinished SELECT on the file, COMMIT fails with "database is locked" (SQLITE_BUSY), and
# SQLite leaves the transaction open. Session.commit() and Connection.commit() raise, and on close put the connection
# back into the pool without a ROLLBACK. The pool's next user reads what was never committed, and undoes it when it is
# done. pool_pre_ping makes no difference; poolclass=NullPool does. In pyiceberg, the commit_table of a table raises
# OperationalError, the next load_table has the new properties, and the one after it has the old ones.
#
# Seen on 2026-11-29 (Python 3.11, SQLite 3.40.1):
#   SQLAlchemy: OperationalError, then 2 1 1
#   SQLAlchemy, pool_pre_ping: OperationalError, then 2 1 1
#   SQLAlchemy, NullPool: OperationalError, then 1 1 1
#   pyiceberg: OperationalError, then 2 1 1
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q SQLAlchemy==2.1.9 pyiceberg==0.12.0 pyarrow==26.0.1
cat >"$folder/seen.py" <<'PYTHON'
import sqlite3
import sys

from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField
from sqlalchemy import create_engine, text
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session
from sqlalchemy.pool import NullPool

folder = sys.argv[1]


def reading(file, table):
    cursor = sqlite3.connect(file).execute(f"SELECT * FROM {table} UNION ALL SELECT * FROM {table}")
    cursor.fetchone()
    return cursor


def show(name, commit, read):
    try:
        commit()
    except OperationalError as error:
        print(f"{name}: {type(error).__name__}, then", *(read() for _ in range(3)))


for number, (name, options) in enumerate(
    [("", {}), (", pool_pre_ping", {"pool_pre_ping": True}), (", NullPool", {"poolclass": NullPool})]
):
    file = f"{folder}/{number}.db"
    with sqlite3.connect(file) as made:
        made.execute("CREATE TABLE t (x INT)")
        made.execute("INSERT INTO t VALUES (1)")
    engine = create_engine(f"sqlite:///{file}", connect_args={"timeout": 0}, **options)

    def commit():
        with Session(engine) as session:
            session.execute(text("UPDATE t SET x = 2"))
            session.commit()

    def read():
        with Session(engine) as session:
            return session.execute(text("SELECT x FROM t")).scalar()

    other = reading(file, "t")
    show(f"SQLAlchemy{name}", commit, read)
    other.close()

catalog = SqlCatalog("c", uri=f"sqlite:///{folder}/catalog.db?timeout=0", warehouse=f"file://{folder}/lake")
catalog.create_namespace("shop")
table = catalog.create_table("shop.t", Schema(NestedField(1, "id", LongType())), properties={"x": "1"})
other = reading(f"{folder}/catalog.db", "iceberg_tables")
with_2 = table.transaction().set_properties({"x": "2"})
show("pyiceberg", with_2.commit_transaction, lambda: catalog.load_table("shop.t").properties["x"])
PYTHON
"$folder/venv/bin/python" "$folder/seen.py" "$folder" | tee "$folder/seen"
sed -n 's/^#   //p' "$0" | diff - "$folder/seen"
