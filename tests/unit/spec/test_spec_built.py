"""Every field that the CRD accepts is one that some code obeys; docs/api-versioning.md promises it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from changefeed.spec.model import Spec
from pydantic import BaseModel

ROOT = Path(__file__).parents[3]
MODEL = ROOT / "spark-apps" / "changefeed" / "spec"


def _fields(path: str, model: type[BaseModel]) -> Iterator[tuple[str, str]]:
    """Path in the resource, and the model's own name, of each field that is no section."""
    for name, field in model.model_fields.items():
        sections = list(_sections(field.annotation))
        if not sections:
            yield f"{path}.{field.alias}", name
        for section in sections:
            yield from _fields(f"{path}.{field.alias}", section)


def _sections(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for part in getattr(annotation, "__args__", ()):
        yield from _sections(part)


@cache
def _said() -> frozenset[str]:
    """Attributes that are read and texts that stand in the code of operator and data plane.

    Of the model's, only attributes that its validators read: they refuse by them.
    """
    said: set[str] = set()
    for folder in ("spark-apps/changefeed", "operator/changefeed_operator"):
        for file in (ROOT / folder).rglob("*.py"):
            if file.is_relative_to(MODEL):
                said |= {name for each in _validators(file) for name in _read(each)}
            elif not file.name.endswith("_pb2.py"):
                tree = ast.parse(file.read_text())
                said |= _read(tree)
                texts = (node.value for node in ast.walk(tree) if isinstance(node, ast.Constant))
                said |= {text for text in texts if isinstance(text, str)}
    return frozenset(said)


def _validators(file: Path) -> Iterator[ast.FunctionDef]:
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.FunctionDef) and any("field_validator(" in ast.unparse(d) for d in node.decorator_list):
            yield node


def _read(code: ast.AST) -> set[str]:
    return {node.attr for node in ast.walk(code) if isinstance(node, ast.Attribute)}


@pytest.mark.parametrize(("path", "name"), sorted(set(_fields("spec", Spec))))
def test_a_field_is_obeyed_by_some_code(path: str, name: str) -> None:
    assert {name, path.rpartition(".")[2]} & _said(), f"{path} is in the CRD, and nothing reads it"
