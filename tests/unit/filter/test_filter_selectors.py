"""Which columns are written."""

from __future__ import annotations

from typing import Any

import pytest
from changefeed.errors import InvalidSpec
from changefeed.filter.selection import written_columns
from changefeed.spec.filter.filters import ColumnSelector
from filter_rows import COLUMNS, table


def written(*selectors: tuple[str, list[str]], case_sensitive: bool = False, **more: Any) -> list[str]:
    parsed = [ColumnSelector.model_validate({"matcher": [m], "columns": columns}) for m, columns in selectors]
    there = table(cols=COLUMNS[:4], **more)
    return [column.name for column in written_columns(parsed, there, case_sensitive)]


@pytest.mark.parametrize(
    ("columns", "left"),
    [
        (["*"], ["Id", "i", "u", "d"]),
        (["*", "!u"], ["Id", "i", "d"]),
        (["id", "D"], ["Id", "d"]),
        (["!u", "*"], ["Id", "i", "u", "d"]),
        (["/^i/"], ["Id", "i"]),
        (["`id`", "?", "!d"], ["Id", "i", "u"]),
    ],
)
def test_the_last_rule_that_fits_a_column_decides(columns: list[str], left: list[str]) -> None:
    assert written(("shop.*", columns)) == left


def test_the_first_selector_that_fits_a_table_decides() -> None:
    assert written(("bank.*", ["i"]), ("shop.orders", ["id"]), ("*.*", ["id", "u"])) == ["Id"]
    assert written(("bank.*", ["i"])) == ["Id", "i", "u", "d"]
    assert written(("SHOP.*", ["id"]), case_sensitive=True) == ["Id", "i", "u", "d"]


UNIQUE = [{"id": 1, "idx_name": {"O": "k"}, "idx_cols": [{"name": {"O": "u"}}], "is_unique": True, "state": 5}]


def test_a_key_must_be_left() -> None:
    with pytest.raises(InvalidSpec, match=r"columnSelectors\[0\].columns: \['i'\] leave no key of table shop.orders"):
        written(("*.*", ["i"]))
    assert written(("*.*", ["i", "u"]), index_info=UNIQUE) == ["i", "u"]
    with pytest.raises(InvalidSpec, match="Select the columns of one: Id or u"):
        written(("*.*", ["i"]), index_info=UNIQUE)
