"""No two classes of the product have one name, so that a name in a trace, a review or a search means one thing."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parents[3]
CODE = ("spark-apps", "devcluster", "operator")

#: Names that several classes may have, each with the reason.
SHARED: dict[str, str] = {}


def classes(module: Path) -> list[str]:
    """Names of a module's classes, without the underscore of private ones."""
    tree = ast.parse(module.read_text())
    return [node.name.lstrip("_") for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]


def test_no_two_classes_have_one_name() -> None:
    found: dict[str, list[str]] = defaultdict(list)
    for module in sorted(path for folder in CODE for path in (ROOT / folder).rglob("*.py")):
        for name in classes(module):
            found[name].append(str(module.relative_to(ROOT)))
    shared = {name: modules for name, modules in found.items() if len(modules) > 1}
    assert {name: modules for name, modules in shared.items() if name not in SHARED} == {}
    assert not SHARED.keys() - shared.keys(), "no longer shared: take them out of SHARED"
