"""What two builds' figures are said to differ by, and what is said to be noise."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import compare
from compare import Ratio, ratios, table
from results import Result

BASE = Result(
    name="insert-csv-scan",
    kind="throughput",
    verified=True,
    rows=1000,
    wall_s=2.0,
    rows_per_s=500.0,
    cpu_s_per_mrow=4.0,
    marginal={"cpu_s_per_mrow": 2.0},
    peak_rss_bytes=1,
    peak_memory_bytes={"own": 3 << 20, "shared": 1 << 20, "mapped": 5 << 20},
    commit="abc",
    cpu="A core",
)


def head(rows_per_s: float, cpu: float) -> Result:
    marginal = {"cpu_s_per_mrow": cpu}
    return replace(BASE, commit="def", rows_per_s=rows_per_s, cpu_s_per_mrow=cpu + 3.0, marginal=marginal)


def test_a_ratio_is_of_each_pair_and_a_figure_that_the_case_does_not_have_is_left_out() -> None:
    pairs = [(BASE, head(1000.0, 1.0)), (BASE, head(600.0, 3.0)), (BASE, head(750.0, 2.5))]
    assert ratios(pairs) == [
        Ratio("rows/s", [2.0, 1.2, 1.5]),
        Ratio("CPU-s a million rows", [1.0, 1.5, 1.375]),
        Ratio("of them at the margin", [0.5, 1.5, 1.25]),
        Ratio("memory", [1.0, 1.0, 1.0]),
    ]


def test_what_some_pairs_say_more_of_and_others_less_is_noise() -> None:
    assert not Ratio("rows/s", [1.01, 1.2]).is_noise
    assert not Ratio("rows/s", [0.99, 0.5]).is_noise
    assert Ratio("rows/s", [0.99, 1.2]).is_noise
    assert Ratio("rows/s", [1.0, 1.2]).is_noise
    assert Ratio("rows/s", [1.2]).is_noise, "one pair can't tell"


def test_the_table_has_least_median_and_most() -> None:
    said = table("insert-csv-scan", [(BASE, head(600.0, 3.0)), (BASE, head(1000.0, 1.0)), (BASE, head(750.0, 1.5))])
    assert said.splitlines() == [
        "insert-csv-scan: def / abc, 3 pairs of 1,000 rows on A core",
        "                             min  median     max",
        "rows/s                     1.200   1.500   2.000",
        "CPU-s a million rows       1.000   1.125   1.500  within the noise",
        "of them at the margin      0.500   0.750   1.500  within the noise",
        "memory                     1.000   1.000   1.000  within the noise",
    ]


def test_builds_take_turns_in_being_the_first(tmp_path: Path, monkeypatch: Any) -> None:
    base, other = tmp_path / "base", tmp_path / "head"
    order = []

    def measured(tree: Path, case: str, options: Any, out: Path) -> Result:
        order.append((tree.name, out.name))
        return replace(BASE, name=tree.name)

    monkeypatch.setattr(compare, "measure", measured)
    pairs = list(compare.measured_pairs((base, other), "idle", 3, [], tmp_path))
    assert [(one.name, two.name) for one, two in pairs] == [("base", "head")] * 3
    assert [name for name, _ in order] == ["base", "head", "head", "base", "base", "head"]
    assert {out for _, out in order} == {f"idle-{n}-{k}.json" for n, k in product(("base", "head"), (1, 2, 3))}
