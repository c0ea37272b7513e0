"""Tests see what a caller sees: their looks into other objects' private attributes are counted, and become no more."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

_TESTS = Path(__file__).parents[2]
_MOST = 75  # lower it when there are fewer
_PUBLIC = {"_replace", "_asdict", "_fields", "_make", "_exit"}  # the standard library's own
_BY_NAME = {"setattr", "getattr", "delattr", "object"}  # also of monkeypatch and of mock.patch


def _is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and name not in {"_", *_PUBLIC}


def _own(tree: ast.Module) -> set[str]:
    """Names that classes of this module give to their attributes and methods."""
    own = set()
    for class_ in (node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)):
        for node in ast.walk(class_):
            match node:
                case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.Name(id=name, ctx=ast.Store()):
                    own.add(name)
                case ast.Attribute(value=ast.Name(id="self" | "cls"), attr=name, ctx=ast.Store()):
                    own.add(name)
    return own


def _accesses(source: str) -> Iterator[str]:
    tree = ast.parse(source)
    own = _own(tree)
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(value=ast.Name(id="self" | "cls") | ast.Call(func=ast.Name(id="super"))):
                pass
            case ast.Attribute(attr=name) if _is_private(name) and name not in own:
                yield f"{node.lineno}: {ast.unparse(node)}"
            case ast.ImportFrom(names=names):
                yield from (f"{node.lineno}: import {each.name}" for each in names if _is_private(each.name))
            case ast.Call(func=ast.Name(id=called) | ast.Attribute(attr=called), args=args) if called in _BY_NAME:
                named = [str(each.value).rpartition(".")[2] for each in args[:2] if isinstance(each, ast.Constant)]
                yield from (f"{node.lineno}: {name}" for name in named if _is_private(name))


def test_private_accesses_are_found() -> None:
    source = """
from module import _a
class Own:
    def __init__(self): self._b = super()._c
def test(monkeypatch, other):
    assert other._d._e and Own()._b
    monkeypatch.setattr(other, "_f", 1)
    monkeypatch.setattr("module._g", other.__dict__)
"""
    assert sorted(_accesses(source)) == ["2: import _a", "6: other._d", "6: other._d._e", "7: _f", "8: _g"]


def test_tests_look_into_no_more_objects_than_before() -> None:
    found = [
        f"{file.relative_to(_TESTS)}:{each}" for file in _TESTS.rglob("*.py") for each in _accesses(file.read_text())
    ]
    assert len(found) <= _MOST, "look at what comes out, or give it a public name:\n" + "\n".join(sorted(found))
