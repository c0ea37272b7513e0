"""Ways to do harm to a right sink; each says what must be said of it."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from verify_sink import EOL, HandSink, Shop, write_schema

ITEMS = "shop/items"
ITEM = "shop/item"

Harm = Callable[[HandSink, Shop], tuple[str, ...]]


def drop_a_line(sink: HandSink, shop: Shop) -> tuple[str, ...]:
    file = sink.file(ITEMS, 0)
    lines = sink.lines(file)
    sink.put(file, [*lines[:2], *lines[3:]])
    return "A change of shop.items is in no file: I,", "id='5'", "it belongs before"


def drop_a_line_in_the_middle(sink: HandSink, shop: Shop) -> tuple[str, ...]:
    file = sink.file(ITEMS, -1)
    sink.put(file, sink.lines(file)[1:])
    return "is in no file: U,", "amount='90.50'", f"it belongs after {sink.name(sink.file(ITEMS, 2))}, row 5"


def double_a_line(sink: HandSink, shop: Shop) -> tuple[str, ...]:
    file = sink.file(ITEMS, 0)
    lines = sink.lines(file)
    sink.put(file, [*lines[:3], *lines[2:]])
    return f"{sink.name(file)}, row 4: ", "appears again", "id='5'"


def double_a_line_in_another_file(sink: HandSink, shop: Shop) -> tuple[str, ...]:
    file = sink.file(ITEMS, 1)
    sink.put(file, sink.lines(sink.file(ITEMS, 0))[-1:])
    return f"{sink.name(file)}, row 1: ", "appears again", "note=None"


def swap(number: int, first: int) -> Harm:
    def harm(sink: HandSink, shop: Shop) -> tuple[str, ...]:
        file = sink.file(ITEMS, number)
        lines = sink.lines(file)
        lines[first : first + 2] = reversed(lines[first : first + 2])
        sink.put(file, lines)
        return f"{sink.name(file)}, row {first + 2}: ", "comes after a later one"

    return harm


def swap_the_halves_of_a_split_update(sink: HandSink, shop: Shop) -> tuple[str, ...]:
    file = sink.file(ITEMS, 2)
    lines = sink.lines(file)
    assert [line[1:2] for line in lines] == [b"D", b"D", b"U", b"I", b"I"]
    lines[0], lines[3] = lines[3], lines[0]
    sink.put(file, lines)
    return f"{sink.name(file)}, row 2: ", "comes after a later one"


def change(old: bytes, new: bytes, *said: str) -> Harm:
    def harm(sink: HandSink, shop: Shop) -> tuple[str, ...]:
        file, body = next(
            (path, path.read_bytes()) for path in sorted(sink.lake.rglob("CDC*.csv")) if old in path.read_bytes()
        )
        file.write_bytes(body.replace(old, new, 1))
        return (f"{sink.name(file)}, row ", "the upstream has no such change", *said)

    return harm


def change_a_commit_ts(sink: HandSink, shop: Shop) -> tuple[str, ...]:
    file = sink.file(ITEM, 0)
    (line,) = sink.lines(file)
    ts = line.split(b",")[3]
    sink.put(file, [line.replace(ts, b"%d" % (int(ts) + 1))])
    return f"{sink.name(file)}, row 1: ", f"commit ts {int(ts) + 1}", f"it has U, commit ts {int(ts)}"


def move_a_commit_ts_above_the_checkpoint(sink: HandSink, shop: Shop) -> tuple[str, ...]:
    file = sink.file(ITEM, 0)
    (line,) = sink.lines(file)
    sink.put(file, [line.replace(line.split(b",")[3], b"%d" % shop.last_ts)])
    return "A change of shop.item is in no file: U,", "amount='17'"


def delete_file(number: int) -> Harm:
    def harm(sink: HandSink, shop: Shop) -> tuple[str, ...]:
        file = sink.file(ITEMS, number)
        file.unlink()
        return sink.name(file), "is missing", "publishes 2 files"

    return harm


def set_the_index_back(sink: HandSink, shop: Shop) -> tuple[str, ...]:
    index = sink.file(ITEMS, -1).parent / "meta" / "CDC.index"
    index.write_text(f"CDC{1:020}.csv\n")
    return sink.name(index), "publishes 1 files, but 2 are committed"


def delete_the_index(sink: HandSink, shop: Shop) -> tuple[str, ...]:
    index = sink.file(ITEMS, -1).parent / "meta" / "CDC.index"
    index.unlink()
    return sink.name(index), "publishes 0 files, but 2 are committed", "deleted"


def delete_an_older_index(sink: HandSink, shop: Shop) -> tuple[str, ...]:
    (sink.file(ITEMS, 0).parent / "meta" / "CDC.index").unlink()
    return "A change of shop.items is in no file: I,", "id='3'"


def set_the_index_forward(sink: HandSink, shop: Shop) -> tuple[str, ...]:
    directory = sink.file(ITEMS, -1).parent
    (directory / "meta" / "CDC.index").write_text(f"CDC{10**18:020}.csv\n")
    return f"{sink.name(directory)}/CDC{3:020}.csv is missing", "meta/CDC.index"


def write_nonsense_into_the_index(sink: HandSink, shop: Shop) -> tuple[str, ...]:
    index = sink.file(ITEMS, -1).parent / "meta" / "CDC.index"
    index.write_bytes(b"\xff../CDC1.csv")
    return sink.name(index), "which is no data file"


def move_the_checkpoint_over_rows(sink: HandSink, shop: Shop) -> tuple[str, ...]:
    sink.metadata(shop.last_ts)
    return (f"`metadata` publishes checkpoint {shop.last_ts}, above {shop.checkpoint_ts}",)


def move_the_checkpoint_over_nothing(sink: HandSink, shop: Shop) -> tuple[str, ...]:
    sink.metadata(shop.checkpoint_ts + 1)
    return (f"`metadata` publishes checkpoint {shop.checkpoint_ts + 1}, above {shop.checkpoint_ts}",)


def move_the_checkpoint_below_the_start(sink: HandSink, shop: Shop) -> tuple[str, ...]:
    sink.metadata(shop.start_ts - 1)
    return "below startTs", "gone back"


def put_a_foreign_tables_rows_into_a_file(sink: HandSink, shop: Shop) -> tuple[str, ...]:
    file = sink.file(ITEMS, 1)
    file.write_bytes(b'"I","things","other",%d,1,1,"x",\\N\r\n' % shop.checkpoint_ts)
    return (f"{sink.name(file)}, row 1: a row of other.things is in a file of shop.items",)


def put_a_foreign_tables_directory(sink: HandSink, shop: Shop) -> tuple[str, ...]:
    shutil.copytree(sink.lake / ITEM, sink.lake / "other" / "things")
    return "other/things/", "no table that the changefeed selects"


def put_a_directory_beside_the_versions(sink: HandSink, shop: Shop) -> tuple[str, ...]:
    shutil.copytree(sink.file(ITEM, 0).parent, sink.lake / ITEM / "backup")
    return "shop/item/backup", "no table that the changefeed selects"


def put_a_file_of_another_name(sink: HandSink, shop: Shop) -> tuple[str, ...]:
    file = sink.file(ITEM, 0)
    shutil.copy(file, file.with_name("CDC000001.csv"))
    return ("CDC000001.csv is not named as the files of its directory are",)


def put_a_stray_file(sink: HandSink, shop: Shop) -> tuple[str, ...]:
    shutil.copy(sink.file(ITEM, 0), sink.lake / "shop" / "item.csv")
    return ("shop/item.csv is no file of a changefeed",)


def truncate(keep: int, *said: str) -> Harm:
    def harm(sink: HandSink, shop: Shop) -> tuple[str, ...]:
        file = sink.file(ITEMS, 0)
        file.write_bytes(file.read_bytes()[:keep])
        return said or (sink.name(file), "is cut off")

    return harm


def insert_a_blank_line(sink: HandSink, shop: Shop) -> tuple[str, ...]:
    file = sink.file(ITEMS, 0)
    file.write_bytes(file.read_bytes() + EOL)
    return sink.name(file), "can't be decoded", "invalid value ''"


def write_bytes_that_are_no_text(sink: HandSink, shop: Shop) -> tuple[str, ...]:
    file = sink.file(ITEMS, 0)
    file.write_bytes(file.read_bytes().replace(b"two", b"\xff\xfe\xfd"))
    return sink.name(file), "the upstream has no such change", r"\\xff\\xfe\\xfd", "note='two"


def delete_a_schema_file(sink: HandSink, shop: Shop) -> tuple[str, ...]:
    next((sink.lake / ITEM / "meta").iterdir()).unlink()
    return ("has no schema file shop/item/meta/schema_",)


def put_back_in_time(file: Path, text: str) -> None:
    """As if it had been written so at first."""
    times = file.stat().st_mtime
    file.write_text(text)
    os.utime(file, (times, times))


def change_a_schema_file(sink: HandSink, shop: Shop) -> tuple[str, ...]:
    file = next((sink.lake / ITEM / "meta").iterdir())
    put_back_in_time(file, file.read_text().replace("amount", "sum"))
    return sink.name(file), "does not match the checksum in its name"


def rewrite_a_schema(change: Callable[[dict[str, Any]], object], *said: str) -> Harm:
    """Under the name that the changed content asks for."""

    def harm(sink: HandSink, shop: Shop) -> tuple[str, ...]:
        file = next((sink.lake / ITEM / "meta").iterdir())
        content = json.loads(file.read_text())
        file.unlink()
        change(content)
        times = file.parent.stat().st_mtime
        path = write_schema(file.parent, shop.start_ts, content)
        os.utime(path, (times - 3600, times - 3600))
        return sink.name(path), *said

    return harm


def change_a_schema_behind_its_checksum(sink: HandSink, shop: Shop) -> tuple[str, ...]:
    file = next((sink.lake / ITEM / "meta").iterdir())
    put_back_in_time(file, file.read_text().replace('"BIGINT"', '"INT"'))
    return sink.name(file), "does not match the checksum in its name"


def write_a_schema_file_after_its_data(sink: HandSink, shop: Shop) -> tuple[str, ...]:
    file = next((sink.lake / ITEM / "meta").iterdir())
    data = sink.file(ITEM, 0)
    os.utime(file, (data.stat().st_mtime + 1, data.stat().st_mtime + 1))
    return (f"{sink.name(data)} was written before the schema file",)


HARMS: dict[str, Harm] = {
    harm.__name__: harm
    for harm in (
        drop_a_line,
        drop_a_line_in_the_middle,
        double_a_line,
        double_a_line_in_another_file,
        swap_the_halves_of_a_split_update,
        change_a_commit_ts,
        move_a_commit_ts_above_the_checkpoint,
        set_the_index_back,
        delete_the_index,
        delete_an_older_index,
        set_the_index_forward,
        write_nonsense_into_the_index,
        move_the_checkpoint_over_rows,
        move_the_checkpoint_over_nothing,
        move_the_checkpoint_below_the_start,
        put_a_foreign_tables_rows_into_a_file,
        put_a_foreign_tables_directory,
        put_a_directory_beside_the_versions,
        put_a_file_of_another_name,
        put_a_stray_file,
        insert_a_blank_line,
        write_bytes_that_are_no_text,
        delete_a_schema_file,
        change_a_schema_file,
        change_a_schema_behind_its_checksum,
        write_a_schema_file_after_its_data,
    )
} | {
    "swap lines of two transactions": swap(-1, 0),
    "swap lines of one transaction": swap(2, 1),
    "swap lines of one operation": swap(0, 0),
    "swap the rows above the checkpoint": swap(-1, 1),
    "change a value": change(b'"back"', b'"bock"', "note='bock'", "it has I,", "note='back'"),
    "NULL to text": change(b",7,\\N,", b',7,"\\N",', "note='\\\\N'", "note=None"),
    "text to NULL": change(b'"\\N"', b"\\N", "note=None", "note='\\\\N'"),
    "empty text to NULL": change(b',3,"",', b",3,\\N,", "note=None", "note=''"),
    "change an operation": change(b'"U","item"', b'"I","item"', ": I, commit ts", "it has U, commit ts"),
    "delete the first file": delete_file(0),
    "delete an empty file": delete_file(1),
    "delete the last file": delete_file(-1),
    "truncate in a line": truncate(-10),
    "truncate in a value of two lines": truncate(-60),
    "truncate the end of the last line": truncate(-1),
    "truncate to nothing": truncate(0, "A change of shop.items is in no file: I,", "id='3'"),
}
