"""A deliberate bug: one expression, or some statements, of a function of the product replaced for the length of a test.

The place is found by syntax: `old` is parsed, and so is the function, so line breaks, quotes, comments and superfluous
parentheses make no difference. `old` is an expression, an argument (`name=value`), one or more statements, or the head
of a statement (`if ...:`), whose body stays. `new` takes its place; "" takes an argument or a statement out.

A mutation whose place is not there any more, or twice, fails loudly: the function has changed, and the mutation must
follow.
"""

from __future__ import annotations

import ast
import inspect
import sys
import textwrap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import pytest


@dataclass(frozen=True)
class Edit:
    owner: Any  # a class or a module
    function: str
    old: str
    new: str

    def apply(self, monkeypatch: pytest.MonkeyPatch) -> None:
        original = inspect.getattr_static(self.owner, self.function)
        edited = self._edited(original)
        monkeypatch.setattr(self.owner, self.function, edited)
        if isinstance(self.owner, ModuleType):  # others may have imported it by its name
            for module in list(sys.modules.values()):
                if module.__dict__.get(self.function) is original:
                    monkeypatch.setattr(module, self.function, edited)

    def _edited(self, original: Any) -> Any:
        function: Any = original.fget if isinstance(original, property) else original
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
        found = replace(tree, self.old, self.new)
        assert found == 1, f"{self.function} has {found} times {self.old!r}"
        code = compile(ast.fix_missing_locations(tree), inspect.getsourcefile(function) or "", "exec")
        made: dict[str, Callable[..., Any]] = {}
        exec(code, function.__globals__, made)
        return made[function.__name__]


@dataclass(frozen=True)
class Mutation:
    core: str
    name: str  # what is taken out
    owner: Any  # a class or a module
    function: str
    old: str
    new: str
    rule: int = 0  # which is broken by it, see docs/design/rules.md
    story: str = ""  # how it breaks a promise
    also: tuple[Edit, ...] = ()  # what is taken out with it, as it would refuse or hide it

    def __str__(self) -> str:
        return f"{self.core}: {self.name}"

    def apply(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for edit in (Edit(self.owner, self.function, self.old, self.new), *self.also):
            edit.apply(monkeypatch)


def replace(tree: ast.AST, old: str, new: str) -> int:
    """Put `new` where `old` is in the tree; how often that was."""
    if old.endswith(":"):
        return _replace_heads(tree, old, new)
    found = 0
    for before, after in _readings(_parsed(old), _parsed(new)):
        places = list(_places(tree, before))
        for put in places:
            put(after)
        found += len(places)
    return found


def _readings(old: list[ast.stmt], new: list[ast.stmt]) -> Iterator[tuple[Sequence[ast.AST], Sequence[ast.AST]]]:
    """As what the two may be meant: expressions; else statements; and `name=value` as an argument, too."""
    match old, new:
        case [ast.Expr(before)], [ast.Expr(after)]:
            yield [before], [after]
        case [ast.Expr(before)], []:
            yield [before], []
        case [ast.Assign([ast.Name(name)], before)], [ast.Assign([ast.Name(also)], after)] if name == also:
            yield old, new
            yield [ast.keyword(name, before)], [ast.keyword(name, after)]
        case _:
            yield old, new


def _replace_heads(tree: ast.AST, old: str, new: str) -> int:
    (before,), (after,) = _parsed(f"{old} pass"), _parsed(f"{new} pass")
    found = [node for node in ast.walk(tree) if _head(node) == _head(before)]
    for node in found:
        assert type(node) is type(after), f"{new!r} is another statement than {old!r}"
        for name in _head_fields(node):
            setattr(node, name, getattr(after, name))
    return len(found)


def _head(node: ast.AST) -> tuple[type[ast.AST], list[str]]:
    fields = [getattr(node, name) for name in _head_fields(node)]
    return type(node), [ast.dump(each) if isinstance(each, ast.AST) else repr(each) for each in fields]


def _head_fields(node: ast.AST) -> Sequence[str]:
    return [name for name in node._fields if name not in ("body", "orelse")]


def _parsed(snippet: str) -> list[ast.stmt]:
    return ast.parse(textwrap.dedent(snippet)).body


def _places(tree: ast.AST, wanted: Sequence[ast.AST]) -> Iterator[Callable[[Sequence[ast.AST]], None]]:
    """Where these nodes are, one after the other: each is a function that puts others there."""
    dumped = [ast.dump(each) for each in wanted]
    for node in ast.walk(tree):
        for name, value in ast.iter_fields(node):
            if isinstance(value, ast.AST) and [ast.dump(value)] == dumped:
                yield _setter(node, name)
            if isinstance(value, list):
                shown = [ast.dump(each) if isinstance(each, ast.AST) else "" for each in value]
                for at in range(len(value) - len(dumped), -1, -1):
                    if shown[at : at + len(dumped)] == dumped:
                        yield _slice_setter(value, at, at + len(dumped))


def _setter(node: ast.AST, name: str) -> Callable[[Sequence[ast.AST]], None]:
    def put(instead: Sequence[ast.AST]) -> None:
        (only,) = instead
        setattr(node, name, only)

    return put


def _slice_setter(nodes: list[ast.AST], start: int, end: int) -> Callable[[Sequence[ast.AST]], None]:
    def put(instead: Sequence[ast.AST]) -> None:
        nodes[start:end] = instead

    return put
