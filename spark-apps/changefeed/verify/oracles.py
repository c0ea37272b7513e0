"""The oracles: pure functions over what the files say and what the upstream says (facts, oracles 6.3).

Images of changes have the columns op (D, U, I), commit_ts (u64) and c0..cn (text, null = NULL).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl

from changefeed.verify.result import NotVerifiable, Result

_AMOUNT = pl.Decimal(38, 12)
_IS_AMOUNT = r"^-?[0-9]{1,20}(\.[0-9]{1,12})?$"


@dataclass(frozen=True)
class TableRows:
    """One table's changes after startTs."""

    name: str
    columns: list[str]  # names of c0..cn
    key: list[str]  # which of c0..cn identify a row
    files: pl.DataFrame  # images with place, file, line, in file order; also those above the checkpoint
    upstream: pl.DataFrame  # images up to the checkpoint, with position: where the change belongs

    @property
    def image(self) -> list[str]:
        return ["op", "commit_ts", *[f"c{i}" for i in range(len(self.columns))]]

    def show(self, row: dict[str, Any]) -> str:
        """One image for a person."""
        values = [f"{name}={row[f'c{i}']!r}" for i, name in enumerate(self.columns)]
        return ", ".join([row["op"] or "?", f"commit ts {row['commit_ts']}", *values])

    def where(self, place: int) -> str:
        """A place in the files for a person."""
        return f"{self.files['file'][place]}, row {self.files['line'][place]}"


def check_set(table: TableRows, checkpoint_ts: int, result: Result) -> None:
    """O3: up to the checkpoint the files hold the upstream's changes, each once.

    Equal multiset hashes end the matter; else the differences are counted and the first one is named.
    """
    files = table.files.filter(pl.col("commit_ts") <= checkpoint_ts)
    if fingerprint(files.select(table.image)) == fingerprint(table.upstream.select(table.image)):
        return
    have = files.group_by(table.image).agg(pl.len().cast(pl.Int64).alias("have"), pl.col("place").max())
    want = table.upstream.group_by(table.image).agg(pl.len().cast(pl.Int64).alias("want"), pl.col("position").min())
    both = have.join(want, on=table.image, how="full", coalesce=True, nulls_equal=True).with_columns(
        pl.col("have", "want").fill_null(0)
    )
    missing = both.filter(pl.col("have") < pl.col("want")).sort("position")
    extra = both.filter(pl.col("have") > pl.col("want")).sort("place")
    duplicate, unexpected = extra.filter(pl.col("want") > 0), extra.filter(pl.col("want") == 0)
    result.missing += int((missing["want"] - missing["have"]).sum())
    result.duplicate += int((duplicate["have"] - duplicate["want"]).sum())
    result.unexpected += int(unexpected["have"].sum())
    if unexpected.height:
        row = unexpected.row(0, named=True)
        result.problem(
            f"{table.where(row['place'])}: the upstream has no such change of {table.name}: {table.show(row)}"
            f"{_instead(table, row, missing)}."
        )
    if duplicate.height:
        row = duplicate.row(0, named=True)
        result.problem(f"{table.where(row['place'])}: a change of {table.name} stands there again: {table.show(row)}.")
    if missing.height:
        row = missing.row(0, named=True)
        result.problem(f"A change of {table.name} is in no file: {table.show(row)}; {_belongs(table, row)}.")


def _instead(table: TableRows, row: dict[str, Any], missing: pl.DataFrame) -> str:
    """What the upstream has at this commit ts for this key; else the same values at another commit ts."""
    for same in (["commit_ts", *table.key], table.image[2:]):
        found = missing.filter(pl.all_horizontal(pl.col(name).eq_missing(pl.lit(row[name])) for name in same))
        if found.height:
            return f"; it has {table.show(found.row(0, named=True))}"
    return ""


def _belongs(table: TableRows, row: dict[str, Any]) -> str:
    before = table.files.filter(pl.col("commit_ts") < row["commit_ts"])
    if before.height:
        return f"it belongs after {table.where(before['place'][-1])}"
    return f"it belongs before {table.where(0)}" if table.files.height else "no file of the table has a row"


def check_order(table: TableRows, result: Result) -> None:
    """O1: the files' order is that of positions: commit ts, start ts, deletes before updates before inserts, key.

    Rows that the upstream does not have, and those above the checkpoint, are held to their commit ts alone.
    """
    identity = ["op", "commit_ts", *table.key]
    rows = table.files.join(
        table.upstream.select(*identity, "position"), on=identity, how="left", maintain_order="left"
    )
    back = rows.filter(
        (pl.col("commit_ts") < pl.col("commit_ts").cum_max()) | (pl.col("position") < pl.col("position").cum_max())
    )
    result.out_of_order += back.height
    if back.height:
        row = back.row(0, named=True)
        result.problem(
            f"{table.where(row['place'])}: a change of {table.name} stands behind a later one: {table.show(row)}."
        )


def check_conserved(
    tables: Sequence[TableRows], bases: Sequence[pl.DataFrame], column: str, checkpoint_ts: int, result: Result
) -> None:
    """O7: the sum of `column` over all tables is the same after every transaction up to the checkpoint; NULL is 0.

    `bases`: each table's rows at startTs, as frames with c0..cn. Tables without the column count nothing. Raises
    NotVerifiable for values that can't be added up exactly.
    """
    starts = [pl.DataFrame(schema={"amount": _AMOUNT})]
    moves = [pl.DataFrame(schema={"commit_ts": pl.UInt64, "move": _AMOUNT})]
    for table, base in zip(tables, bases, strict=True):
        if column not in table.columns:
            continue
        source = f"c{table.columns.index(column)}"
        changes = table.files.filter(pl.col("commit_ts") <= checkpoint_ts)
        for frame in (base, changes):
            _check_amounts(frame[source], f"{table.name}.{column}")
        amount = pl.col(source).cast(_AMOUNT).fill_null(0).alias("amount")
        at_start = base.select(pl.lit(0, pl.UInt64).alias("commit_ts"), pl.lit("I").alias("op"), *table.key, amount)
        starts.append(at_start.select("amount"))
        moves.append(_moves(table.key, pl.concat([at_start, changes.select("commit_ts", "op", *table.key, amount)])))
    sums = (
        pl.concat(moves).group_by("commit_ts").agg(pl.col("move").sum()).filter(pl.col("move") != 0).sort("commit_ts")
    )
    result.conserved = _plain(pl.concat(starts)["amount"].sum())
    if sums.height:
        result.problem(
            f"The sum of {column} changes by {_plain(sums['move'][0])} at commit ts {sums['commit_ts'][0]}; "
            f"{sums.height} transactions in all do not conserve it."
        )


def _check_amounts(texts: pl.Series, name: str) -> None:
    odd = texts.filter(texts.is_not_null() & ~texts.str.contains(_IS_AMOUNT))
    if odd.len():
        raise NotVerifiable(
            f"{name} holds {odd[0]!r}, which can't be added up exactly.",
            "Name a column of numbers with at most 20 digits before and 12 after the point.",
        )


def _moves(key: Sequence[str], amounts: pl.DataFrame) -> pl.DataFrame:
    """By how much each change moves the amount: what the row holds after it less what it held before."""
    held = pl.when(pl.col("op") == "D").then(pl.lit(0, _AMOUNT)).otherwise(pl.col("amount"))
    return (
        amounts.with_columns(held.alias("after"))
        .with_columns(pl.col("after").shift(1, fill_value=0).over(key).alias("before"))
        .filter(pl.col("commit_ts") > 0)
        .select("commit_ts", (pl.col("after") - pl.col("before")).cast(_AMOUNT).alias("move"))
    )


def _plain(amount: object) -> str:
    return f"{amount:f}".rstrip("0").rstrip(".")


def fingerprint(frame: pl.DataFrame) -> tuple[int, int]:
    """An order-free hash of a multiset of rows: their number, and the wrapping sum of their 64-bit hashes."""
    return frame.height, int(frame.hash_rows(1).sum() if frame.height else 0)
