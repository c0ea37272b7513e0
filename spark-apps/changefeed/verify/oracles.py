"""The oracles: pure functions over what the files say and what the upstream says (facts, oracles 6.3).

Frames of rows have the columns op (I, U, D), commit_ts (u64) and c0..cn (text, null = NULL); those of files also file
and line.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal

import polars as pl

from changefeed.verify.result import Result


@dataclass(frozen=True)
class TableRows:
    """One table: its rows in the files, in file order, and in the upstream's history, both of (startTs, checkpoint]."""

    name: str
    columns: list[str]  # names of c0..cn
    key: list[str]  # which of c0..cn identify a row
    files: pl.DataFrame
    upstream: pl.DataFrame


def check_order(table: TableRows, result: Result) -> None:
    """O1: in file order commit ts never decreases; a split update's delete comes before its insert."""
    back = table.files.filter(pl.col("commit_ts") < pl.col("commit_ts").cum_max().shift(1))
    result.out_of_order += back.height
    if back.height:
        result.problem(f"{_place(back)}: commit ts {back['commit_ts'][0]} of {table.name} stands after a higher one.")
    position = pl.col("position")
    swapped = (
        table.files.with_row_index("position")
        .group_by(*table.key, "commit_ts", maintain_order=True)
        .agg(
            position.filter(pl.col("op") == "D").min().alias("deleted"),
            position.filter(pl.col("op") != "D").min().alias("written"),
            pl.col("file").last(),
            pl.col("line").last(),
        )
        .filter(pl.col("deleted") > pl.col("written"))
    )
    result.out_of_order += swapped.height
    if swapped.height:
        result.problem(f"{_place(swapped)}: a delete of {table.name} stands after the insert of its own transaction.")


def check_set(table: TableRows, result: Result) -> None:
    """O3: the files hold the upstream's changes, each once.

    Equal multiset hashes end the matter; else the difference is named.
    """
    columns = ["op", "commit_ts", *[c for c in table.upstream.columns if c.startswith("c") and c != "commit_ts"]]
    if _fingerprint(table.files.select(columns)) == _fingerprint(table.upstream.select(columns)):
        return
    have = table.files.group_by(columns).agg(
        pl.len().cast(pl.Int64).alias("have"), pl.col("file").last(), pl.col("line").last()
    )
    want = table.upstream.group_by(columns).agg(pl.len().cast(pl.Int64).alias("want"))
    both = have.join(want, on=columns, how="full", coalesce=True, nulls_equal=True)
    both = both.with_columns(
        pl.col("have", "want").fill_null(0),
    ).sort("commit_ts", "op", *columns[2:])
    missing = both.filter(pl.col("have") < pl.col("want"))
    extra = both.filter(pl.col("have") > pl.col("want"))
    duplicate = extra.filter(pl.col("want") > 0)
    unexpected = extra.filter(pl.col("want") == 0)
    result.missing += int((missing["want"] - missing["have"]).sum())
    result.duplicate += int((duplicate["have"] - duplicate["want"]).sum())
    result.unexpected += int(unexpected["have"].sum())
    if unexpected.height:
        result.problem(f"{_place(unexpected)}: the upstream has no such change of {table.name}: {_row(unexpected)}.")
    if duplicate.height:
        result.problem(f"{_place(duplicate)}: a change of {table.name} stands there again: {_row(duplicate)}.")
    if missing.height:
        result.problem(f"A change of {table.name} is in no file: {_row(missing)}.")


def check_conserved(tables: Sequence[TableRows], bases: Sequence[pl.DataFrame], column: str, result: Result) -> None:
    """O7: the sum of `column` over all tables is the same after every transaction.

    `bases`: each table's rows at startTs, as frames with c0..cn. Tables without the column count nothing.
    """
    moves = []
    total = Decimal(0)
    for table, base in zip(tables, bases, strict=True):
        if column not in table.columns:
            continue
        name = f"c{table.columns.index(column)}"
        amount = pl.col(name).cast(pl.Decimal(38, 6))
        total += base.select(amount.sum()).item() or 0
        moves.append(_moves(table, base, amount))
    if not moves:
        result.problem(f"No selected table has a column {column!r}: there is nothing conserved to check.")
        return
    sums = (
        pl.concat(moves).group_by("commit_ts").agg(pl.col("move").sum()).filter(pl.col("move") != 0).sort("commit_ts")
    )
    result.conserved = f"{Decimal(total).normalize():f}"
    if sums.height:
        result.problem(
            f"The sum of {column} changes by {sums['move'][0]} at commit ts {sums['commit_ts'][0]}; "
            f"{sums.height} transactions in all do not conserve it."
        )


def _moves(table: TableRows, base: pl.DataFrame, amount: pl.Expr) -> pl.DataFrame:
    """By how much each change moves the amount: what the row holds after it less what it held before."""
    at_start = base.select(
        pl.lit(0, pl.UInt64).alias("commit_ts"),
        pl.lit("I").alias("op"),
        *[pl.col(c) for c in table.key],
        amount.alias("a"),
    )
    changes = table.files.select("commit_ts", "op", *table.key, amount.alias("a"))
    held = pl.when(pl.col("op") == "D").then(pl.lit(0, pl.Decimal(38, 6))).otherwise(pl.col("a"))
    return (
        pl.concat([at_start, changes])
        .with_columns(held.alias("after"))
        .with_columns(pl.col("after").shift(1, fill_value=0).over(table.key).alias("before"))
        .filter(pl.col("commit_ts") > 0)
        .select("commit_ts", (pl.col("after") - pl.col("before")).alias("move"))
    )


def _fingerprint(frame: pl.DataFrame) -> tuple[int, int]:
    """An order-free hash of a multiset of rows: their number, and the wrapping sum of their 64-bit hashes."""
    return frame.height, int(frame.hash_rows(1).cast(pl.UInt64).sum() if frame.height else 0)


def _place(frame: pl.DataFrame) -> str:
    return f"{frame['file'][0]}, row {frame['line'][0]}"


def _row(frame: pl.DataFrame) -> str:
    shown = frame.drop([c for c in ("file", "line", "have", "want", "position") if c in frame.columns]).row(
        0, named=True
    )
    return ", ".join(f"{name}={value!r}" for name, value in shown.items())
