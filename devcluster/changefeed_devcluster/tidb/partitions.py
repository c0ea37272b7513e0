"""A table's partitions, by range of its integer primary key: which holds a row, and as what TiDB stores them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

_RANGE = 1


@dataclass(frozen=True)
class TidbPartition:
    """A partition, whose rows stand under `id`, not the table's. `below`: above its highest key; None: MAXVALUE."""

    id: int
    name: str
    below: int | None

    def holds(self, key: int) -> bool:
        return self.below is None or key < self.below

    def sql(self) -> str:
        return f"PARTITION `{self.name}` VALUES LESS THAN ({'MAXVALUE' if self.below is None else self.below})"


def partition_holding(partitions: Iterable[TidbPartition], key: int) -> TidbPartition:
    """Raises ValueError for a key that none holds."""
    for partition in partitions:
        if partition.holds(key):
            return partition
    raise ValueError(f"table has no partition for value {key}")


def partitions_sql(pk: str, partitions: Iterable[TidbPartition]) -> str:
    return f"PARTITION BY RANGE (`{pk}`) ({', '.join(partition.sql() for partition in partitions)})"


def partitions_to_json(pk: str, partitions: tuple[TidbPartition, ...]) -> dict[str, Any] | None:
    if not partitions:
        return None
    return {
        "type": _RANGE, "expr": f"`{pk}`", "columns": None, "enable": True, "is_empty_columns": False,
        "definitions": [
            {
                "id": partition.id, "name": {"O": partition.name, "L": partition.name.lower()},
                "less_than": ["MAXVALUE" if partition.below is None else str(partition.below)],
                "in_values": None, "policy_ref_info": None,
            }
            for partition in partitions
        ],
        "adding_definitions": None, "dropping_definitions": None, "states": None, "num": len(partitions),
        "ddl_state": 0, "ddl_action": 0,
    }  # fmt: skip


def partitions_from_json(data: Mapping[str, Any] | None) -> tuple[TidbPartition, ...]:
    return tuple(
        TidbPartition(
            each["id"], each["name"]["O"], None if each["less_than"] == ["MAXVALUE"] else int(each["less_than"][0])
        )
        for each in (data["definitions"] if data else ())
    )
