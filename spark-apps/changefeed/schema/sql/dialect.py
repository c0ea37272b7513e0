"""Which server a statement is for, as far as that changes the statement (docs/mysql-servers.md)."""

from __future__ import annotations

import re
from dataclasses import dataclass

_NUMBER = re.compile(r"(\d+)\.(\d+)(?:\.(\d+))?")


@dataclass(frozen=True)
class Dialect:
    """`product`: MySQL, MariaDB or TiDB. `version`: its own."""

    product: str
    version: tuple[int, int, int] = (0, 0, 0)

    @classmethod
    def of(cls, said: str) -> Dialect:
        """`said`: by SELECT VERSION(), such as 10.11.6-MariaDB-log or 8.0.11-TiDB-v8.5.1."""
        product = next((name for name in ("TiDB", "MariaDB") if name.lower() in said.lower()), "MySQL")
        number = said.partition("TiDB-")[2] if product == "TiDB" else said.removeprefix("5.5.5-")
        match = _NUMBER.search(number)
        return cls(product, (int(match[1]), int(match[2]), int(match[3] or 0)) if match else (0, 0, 0))

    def __str__(self) -> str:
        return f"{self.product} {'.'.join(map(str, self.version))}"

    @property
    def is_tidb(self) -> bool:
        return self.product == "TiDB"

    @property
    def is_mariadb(self) -> bool:
        return self.product == "MariaDB"

    @property
    def has_keys_of_expressions(self) -> bool:
        return self.is_tidb or (self.product == "MySQL" and self.version >= (8, 0, 13))

    @property
    def has_defaults_of_expressions(self) -> bool:
        return self.is_tidb or self.version >= ((10, 2, 1) if self.is_mariadb else (8, 0, 13))

    @property
    def has_generated_columns(self) -> bool:
        return self.product != "MySQL" or self.version >= (5, 7, 6)

    @property
    def has_json(self) -> bool:
        return self.product != "MySQL" or self.version >= (5, 7, 8)

    @property
    def has_default_partitions(self) -> bool:
        return self.product != "MySQL"

    @property
    def key_bytes(self) -> int:
        """How much of a column an index takes."""
        return 767 if self.product == "MySQL" and self.version < (5, 7, 7) else 3072

    def collation(self, name: str) -> str | None:
        """The server's name for one of the upstream's; None: it has none that is the same."""
        if self.is_mariadb and name == "utf8mb4_0900_bin":
            return "utf8mb4_nopad_bin"  # what has the other name there takes no notice of spaces at the end
        return name if self._has_collation(name) else None

    @property
    def finest_collation(self) -> str | None:
        """The collation of utf8mb4 to which no two texts are the same, not even with spaces at the end."""
        if self.is_mariadb:
            return "utf8mb4_nopad_bin"
        return "utf8mb4_0900_bin" if self._has_collation("utf8mb4_0900_bin") else None

    def _has_collation(self, name: str) -> bool:
        if self.is_tidb:
            return True
        if name.startswith("utf8mb4_0900_"):
            return self.version >= ((11, 4, 5) if self.is_mariadb else (8, 0, 17))
        return not name.startswith("gb18030_") or (not self.is_mariadb and self.version >= (5, 7, 4))

    @property
    def renames_indexes(self) -> bool:
        return self.is_tidb or self.version >= ((10, 5, 2) if self.is_mariadb else (5, 7, 1))

    @property
    def hides_indexes(self) -> bool:
        return self.is_tidb or (self.product == "MySQL" and self.version >= (8, 0, 0))

    @property
    def shows_generated(self) -> bool:
        """Whether information_schema has the expressions of generated columns."""
        return self.is_tidb or self.version >= ((10, 2, 5) if self.is_mariadb else (5, 7, 6))

    @property
    def explains_less(self) -> bool:
        """Whether EXPLAIN shows the statement, as the server has understood it, only if it is EXTENDED."""
        return self.is_mariadb or (not self.is_tidb and self.version < (5, 7, 3))

    @property
    def exchanges_unchecked(self) -> bool:
        return self.is_tidb or self.version >= ((11, 4, 1) if self.is_mariadb else (5, 7, 5))


TIDB = Dialect("TiDB")
