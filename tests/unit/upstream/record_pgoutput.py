"""Records streams of a real PostgreSQL for test_upstream_pgoutput_recorded.py, a file for each of SCENARIOS.

    python tests/unit/upstream/record_pgoutput.py BIN

BIN has initdb and postgres of version 16 or later. A file has the bytes of the copy stream, up to the message "end",
and what the tables contain at the end, as text.
"""

from __future__ import annotations

import gzip
import json
import os
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pg8000.native

FOLDER = Path(__file__).parent / "pgoutput"
_SESSION = {
    "user": "postgres",
    "database": "postgres",
    "replication": "database",
    "client_encoding": "UTF8",
    "DateStyle": "ISO",
    "IntervalStyle": "iso_8601",
    "TimeZone": "UTC",
    "extra_float_digits": "3",
    "bytea_output": "hex",
}
_OPTIONS = ("wal_level=logical", "fsync=off", "autovacuum=off", "lc_monetary=C")

_TYPES = """
    CREATE EXTENSION hstore;
    CREATE TYPE mood AS ENUM ('sad', 'ok', 'so "so", ''really''');
    CREATE TYPE pair AS (a int, b text);
    CREATE DOMAIN positive AS int CHECK (VALUE > 0);
    CREATE TABLE every_type (
        id int PRIMARY KEY, b bool, i2 int2, i4 int4, i8 int8, f4 float4, f8 float8, n numeric, n10_2 numeric(10, 2),
        n5_m2 numeric(5, -2), n3_5 numeric(3, 5), n70 numeric(70, 5), t text, v varchar(20), c char(5), by bytea,
        d date, ts timestamp, ts0 timestamp(0), tz timestamptz, tz3 timestamptz(3), ti time, ti2 time(2), ttz timetz,
        iv interval, u uuid, j json, jb jsonb, ai int[], at text[], m mood, r int4range, inet inet, cidr cidr,
        mac macaddr, mo money, bi bit(5), vb varbit, h hstore, tv tsvector, p point, po polygon, co pair, dom positive,
        o oid, ch "char", na name, mr int4multirange, lsn pg_lsn, x8 xid8
    );
    INSERT INTO every_type (id) VALUES (1);
    INSERT INTO every_type VALUES (
        2, true, 32767, 2147483647, 9223372036854775807, 3.4028235e38, 1.7976931348623157e308,
        123456789012345678901234567890.000000000000000000000000000001, 12345678.90, 1234500, 0.00123, 5,
        'Grüße, 世界 🎈', '', 'ab', '\\xdeadbeef00ff', '9999-12-31', '9999-12-31 23:59:59.999999',
        '2024-02-29 12:34:56', '2024-07-01 00:00:00+02', '2024-07-01 10:00:00.125+00', '23:59:59.999999', '00:00:00.25',
        '12:00:00+05:30',
        '1 year 2 mons 3 days 04:05:06.789', 'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11', '{"a":  [1, 2.50, null]}',
        '{"b": "x", "a": 1e400}', '{1,NULL,3}', '{"a,b",NULL,"\\"q\\""}', 'so "so", ''really''', '[1,10)', '::1/64',
        '10.0.0.0/8', '08:00:2b:01:02:03', '-1234.56', B'10101', B'', 'a=>1, "b c"=>NULL', 'a fat cat', '(1,-2.5)',
        '((0,0),(1,1),(1,0))', '(1,"x,y")', 7, 4294967295, 'x', 'a_name', '{[1,3),[5,8)}', '16/B374D848',
        '18446744073709551615'
    );
    INSERT INTO every_type (id, b, i2, i4, i8, f4, f8, n, n10_2, n5_m2, n3_5, t, v, c, by, d, ts, tz, ti, iv, bi, ch)
    VALUES (
        3, false, -32768, -2147483648, -9223372036854775808, 1.1754944e-38, 5e-324, -0.5, -0.01, -9999900, -0.00999,
        E'tab\\t new\\nline \\\\ "quoted"', 'n', '', '', '0001-01-01', '0001-01-01 00:00:00',
        '1970-01-01 00:00:00.000001+00', '00:00:00', '-1 days', B'00000', ''
    );
    INSERT INTO every_type (id, f4, f8, n, n10_2) VALUES (4, 'NaN', 'NaN', 'NaN', NULL);
    INSERT INTO every_type (id, f4, f8, n, ti) VALUES (5, 'Infinity', '-Infinity', '-Infinity', '24:00:00');
    INSERT INTO every_type (id, f4, f8) VALUES (6, '-0', 0.1);
    CREATE TABLE beyond (id int PRIMARY KEY, d date, ts timestamp, tz timestamptz, n numeric(5, 2));
    INSERT INTO beyond VALUES (1, 'infinity', NULL, NULL, NULL), (2, '-infinity', NULL, NULL, NULL),
        (3, '4713-01-01 BC', NULL, NULL, NULL), (4, '5874897-12-31', NULL, NULL, NULL),
        (5, NULL, 'infinity', NULL, NULL), (6, NULL, '4713-01-01 00:00:00 BC', NULL, NULL),
        (7, NULL, '294276-12-31 23:59:59.999999', NULL, NULL), (8, NULL, NULL, '-infinity', NULL),
        (9, NULL, NULL, NULL, 'NaN')
"""
_LARGE = "(SELECT string_agg(md5(({0} * 1000 + g)::text), '') FROM generate_series(1, 80) g)"
_IDENTITIES = f"""
    CREATE TABLE by_default (a int, b text, c text, id int PRIMARY KEY, big text);
    CREATE TABLE by_full (id int PRIMARY KEY, a text, big text);
    CREATE TABLE by_index (a text, id int PRIMARY KEY, x int NOT NULL, y text NOT NULL, big text);
    CREATE TABLE by_nothing (id int PRIMARY KEY, a text);
    CREATE UNIQUE INDEX by_index_xy ON by_index (y, x);
    ALTER TABLE by_full REPLICA IDENTITY FULL;
    ALTER TABLE by_index REPLICA IDENTITY USING INDEX by_index_xy;
    ALTER TABLE by_full ALTER big SET STORAGE EXTERNAL;
    ALTER TABLE by_default ALTER big SET STORAGE EXTERNAL;
    ALTER TABLE by_index ALTER big SET STORAGE EXTERNAL;
    INSERT INTO by_default SELECT g, 'b' || g, NULL, g, 'small' FROM generate_series(1, 6) g;
    INSERT INTO by_full SELECT g, 'a' || g, {_LARGE.format("g")} FROM generate_series(1, 6) g;
    INSERT INTO by_index SELECT 'a' || g, g, g % 3, 'y' || g, NULL FROM generate_series(1, 6) g;
    UPDATE by_default SET b = NULL WHERE id = 1;
    UPDATE by_default SET id = 12 WHERE id = 2;
    DELETE FROM by_default WHERE id = 3;
    UPDATE by_full SET a = 'new' WHERE id IN (1, 2);
    UPDATE by_full SET a = NULL, id = 13 WHERE id = 3;
    DELETE FROM by_full WHERE id = 4;
    UPDATE by_full SET big = NULL WHERE id = 5;
    UPDATE by_index SET a = 'new' WHERE id = 1;
    UPDATE by_index SET y = 'y moved' WHERE id = 2;
    UPDATE by_index SET id = 100 WHERE id = 3;
    DELETE FROM by_index WHERE id = 4
"""
_NETTED = f"""
    CREATE TABLE netted (id int PRIMARY KEY, a text, big text);
    CREATE TABLE netted_full (id int PRIMARY KEY, a text, big text);
    ALTER TABLE netted_full REPLICA IDENTITY FULL;
    ALTER TABLE netted ALTER big SET STORAGE EXTERNAL;
    ALTER TABLE netted_full ALTER big SET STORAGE EXTERNAL;
    INSERT INTO netted SELECT g, 'a' || g, 'small' FROM generate_series(1, 4) g;
    INSERT INTO netted_full SELECT g, 'a' || g, {_LARGE.format("g")} FROM generate_series(1, 4) g;
    BEGIN;
    INSERT INTO netted VALUES (10, 'a', {_LARGE.format("10")});
    UPDATE netted SET a = 'b' WHERE id = 10;
    UPDATE netted SET a = 'c' WHERE id = 10;
    UPDATE netted SET id = 11 WHERE id = 10;
    UPDATE netted SET a = 'd' WHERE id = 11;
    INSERT INTO netted VALUES (12, 'gone', NULL);
    DELETE FROM netted WHERE id = 12;
    DELETE FROM netted WHERE id = 1;
    INSERT INTO netted VALUES (1, 'again', NULL);
    UPDATE netted SET a = 'x' WHERE id = 2;
    DELETE FROM netted WHERE id = 2;
    UPDATE netted SET id = 20 WHERE id = 3;
    UPDATE netted SET id = 3 WHERE id = 20;
    UPDATE netted_full SET a = 'x' WHERE id = 1;
    UPDATE netted_full SET a = 'y' WHERE id = 1;
    UPDATE netted_full SET id = id + 100 WHERE id = 2;
    DELETE FROM netted_full WHERE id = 3;
    COMMIT;
    BEGIN;
    UPDATE netted SET a = 'kept' WHERE id = 4;
    SAVEPOINT one;
    UPDATE netted SET a = 'rolled back' WHERE id = 4;
    INSERT INTO netted VALUES (30, 'rolled back', NULL);
    ROLLBACK TO one;
    INSERT INTO netted VALUES (31, 'kept', NULL);
    COMMIT
"""
_DEFINITIONS = """
    CREATE TABLE changing (id int PRIMARY KEY, a text, b int);
    CREATE TABLE emptied (id int PRIMARY KEY, a text);
    INSERT INTO changing VALUES (1, 'one', 1), (2, 'two', 2);
    BEGIN;
    INSERT INTO changing VALUES (3, 'three', 3);
    UPDATE changing SET a = 'zwei' WHERE id = 2;
    ALTER TABLE changing ADD c text DEFAULT 'c';
    INSERT INTO changing VALUES (4, 'four', 4, 'vier');
    UPDATE changing SET a = 'deux' WHERE id = 2;
    DELETE FROM changing WHERE id = 3;
    ALTER TABLE changing DROP b;
    UPDATE changing SET c = 'now' WHERE id = 1;
    COMMIT;
    ALTER TABLE changing RENAME a TO z;
    INSERT INTO changing VALUES (5, 'five', NULL);
    INSERT INTO emptied VALUES (1, 'x'), (2, 'y');
    BEGIN;
    INSERT INTO emptied VALUES (3, 'z');
    INSERT INTO changing VALUES (6, 'six', NULL);
    TRUNCATE emptied;
    INSERT INTO emptied VALUES (1, 'new');
    SELECT pg_logical_emit_message(true, 'inside', 'of a transaction');
    COMMIT;
    SELECT pg_logical_emit_message(false, 'changefeed', 'an anchor')
"""
SCENARIOS = {
    "types": _TYPES,
    "identities": _IDENTITIES,
    "netted": _NETTED,
    "definitions": _DEFINITIONS,
}
_END = "end"


def record(port: int, name: str, statements: str) -> None:
    """One scenario, in a database of its own."""
    with pg8000.native.Connection("postgres", host="127.0.0.1", port=port) as admin:
        admin.run(f"CREATE DATABASE {name}")
    with pg8000.native.Connection("postgres", host="127.0.0.1", port=port, database=name) as client:
        client.run("CREATE PUBLICATION everything FOR ALL TABLES WITH (publish_via_partition_root = true)")
        client.run(f"SELECT pg_create_logical_replication_slot('{name}', 'pgoutput')")
        for statement in statements.split(";\n"):
            client.run(statement)
        client.run(f"SELECT pg_logical_emit_message(false, '{_END}', '')")
        stream = _stream(port, name)
        recorded = {"tables": _tables(client), "stream": stream.hex()}
        client.run(f"SELECT pg_drop_replication_slot('{name}')")
    text = json.dumps(recorded, ensure_ascii=False)
    (FOLDER / f"{name}.json.gz").write_bytes(gzip.compress(text.encode(), 9, mtime=0))


def _tables(client: pg8000.native.Connection) -> dict[str, list[dict[str, str | None]]]:
    found = {}
    for (table,) in client.run(
        "SELECT relname FROM pg_class WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace"
    ):
        for setting in ("IntervalStyle", "TimeZone", "extra_float_digits"):
            client.run(f"SET {setting} = '{_SESSION[setting]}'")
        which = f"attrelid = '{table}'::regclass AND attnum > 0 AND NOT attisdropped"
        columns = [name for (name,) in client.run(f"SELECT attname FROM pg_attribute WHERE {which} ORDER BY attnum")]
        texts = ", ".join(f"format('%s', \"{name}\")" for name in columns)
        nulls = ", ".join(f'"{name}" IS NOT DISTINCT FROM NULL' for name in columns)
        rows = client.run(f"SELECT {texts}, {nulls} FROM {table} ORDER BY id")
        found[table] = [
            {name: None if null else text for name, text, null in zip(columns, row, row[len(columns) :], strict=False)}
            for row in rows
        ]
    return found


def _stream(port: int, name: str) -> bytes:
    """The copy stream's bytes."""
    with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
        session = _SESSION | {"database": name}
        members = b"".join(f"{key}\0{value}\0".encode() for key, value in session.items()) + b"\0"
        connection.sendall(struct.pack(">II", len(members) + 8, 196608) + members)
        _until(connection, b"Z")
        command = (
            f"START_REPLICATION SLOT {name} LOGICAL 0/0 (proto_version '1', publication_names 'everything', "
            "messages 'on')\0"
        ).encode()
        connection.sendall(b"Q" + struct.pack(">I", len(command) + 4) + command)
        _until(connection, b"W")
        stream = b""
        while True:
            kind, message = _message(connection)
            stream += message
            if kind == b"E":
                raise SystemExit(message.decode(errors="replace"))
            if f"{_END}\0".encode() in message and message[30:31] == b"M":
                return stream


def _until(connection: socket.socket, wanted: bytes) -> None:
    kind, message = b"", b""
    while kind != wanted:
        kind, message = _message(connection)
        if kind == b"E":
            raise SystemExit(message.decode(errors="replace"))


def _message(connection: socket.socket) -> tuple[bytes, bytes]:
    head = _exactly(connection, 5)
    return head[:1], head + _exactly(connection, int.from_bytes(head[1:]) - 4)


def _exactly(connection: socket.socket, size: int) -> bytes:
    found = b""
    while len(found) < size:
        more = connection.recv(size - len(found))
        if not more:
            raise SystemExit("the server has closed the connection")
        found += more
    return found


def main(programs: Path) -> None:
    """Record all."""
    FOLDER.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as name, socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
        probe.close()
        user = "nobody" if os.geteuid() == 0 else None  # it refuses to be run by root
        if user:
            shutil.chown(name, user)
        where: dict[str, Any] = {"cwd": name, "user": user, "stdout": subprocess.DEVNULL}
        data = f"{name}/data"
        subprocess.run(
            [programs / "initdb", "-D", data, "-U", "postgres", "-A", "trust", "-E", "UTF8"], check=True, **where
        )
        options = [part for option in _OPTIONS for part in ("-c", option)]
        with subprocess.Popen(
            [programs / "postgres", "-D", data, "-p", str(port), "-k", name, *options], **where
        ) as server:
            try:
                _wait(port)
                for scenario, statements in SCENARIOS.items():
                    record(port, scenario, statements)
            finally:
                server.terminate()


def _wait(port: int) -> None:
    for _ in range(300):
        try:
            pg8000.native.Connection("postgres", host="127.0.0.1", port=port).close()
        except (pg8000.exceptions.InterfaceError, pg8000.exceptions.DatabaseError):
            time.sleep(0.1)
        else:
            return
    raise SystemExit("the server does not answer")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
