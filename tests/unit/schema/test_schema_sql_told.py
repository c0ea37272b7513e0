"""Which statements readers are told as they were typed, and which with the names of all tables in full."""

from __future__ import annotations

from dataclasses import replace

import pytest
from changefeed.schema.ddl.actions import Action
from changefeed.schema.history import Touched
from changefeed.schema.sql.told import told
from schema_sql_story import column, job, renamed, table

ORDERS = table()
VIEW = table(column(1, "X"), name="v", database="Dst", pk=False, view={"view_select": "SELECT `x` FROM `Shop`.`a`"})
OPTIONS = "DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin"
MADE = f"CREATE TABLE `Shop`.`Orders` (`id` INT NOT NULL, PRIMARY KEY (`id`)) {OPTIONS}"


@pytest.mark.parametrize(
    ("action", "typed", "touched", "wanted"),
    [
        (
            Action.RENAME_TABLE,
            "ALTER TABLE orders RENAME dst.archive",
            Touched((ORDERS,), (renamed(ORDERS, "Dst", "Archive"),)),
            "RENAME TABLE `Shop`.`Orders` TO `Dst`.`Archive`",
        ),
        (Action.DROP_TABLE, "DROP TABLE orders, others", Touched((ORDERS,), ()), "DROP TABLE `Shop`.`Orders`"),
        (Action.CREATE_VIEW, "CREATE VIEW v AS SELECT x FROM a", Touched((), (VIEW,)),
         "CREATE VIEW `Dst`.`v` (`X`) AS SELECT `x` FROM `Shop`.`a`"),
        (Action.CREATE_TABLE, "CREATE TABLE shop.orders LIKE model", Touched((), (ORDERS,)), MADE),
        (Action.CREATE_TABLE, "CREATE TABLE t (id INT REFERENCES p (id))", Touched((), (ORDERS,)), MADE),
        (Action.CREATE_TABLE, "CREATE TABLE orders (`like` INT)", Touched((), (ORDERS,)), None),
        (Action.TRUNCATE_TABLE, "TRUNCATE orders", Touched((ORDERS,), (replace(ORDERS, id=2),)), None),
        (Action.ADD_COLUMN, "ALTER TABLE orders ADD a INT /* as typed */", Touched((ORDERS,), (ORDERS,)), None),
        (Action.RENAME_TABLE, "RENAME TABLE mysql.t TO shop.orders", Touched((), (ORDERS,)), None),
        (Action.DROP_TABLE, "", Touched((ORDERS,), ()), None),
    ],
)  # fmt: skip
def test_a_statement_that_readers_are_told(action: Action, typed: str, touched: Touched, wanted: str | None) -> None:
    assert told(job(action, typed), touched) == (typed if wanted is None else wanted)
