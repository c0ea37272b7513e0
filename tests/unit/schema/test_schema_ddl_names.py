"""TiDB's jobs have names in lower case, and of several tables the last one's: definitions have the names."""

from __future__ import annotations

import ast
from pathlib import Path

import changefeed

PACKAGE = Path(changefeed.__path__[0])


def test_no_part_of_the_product_takes_a_name_from_a_ddl_job() -> None:
    found = []
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute) and node.attr in ("schema_name", "table_name"):
                owner = ast.unparse(node.value)
                found += [f"{path.relative_to(PACKAGE)}: {owner}.{node.attr}"] if owner.endswith("job") else []
    assert found == []
