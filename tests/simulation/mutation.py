"""A deliberate bug: an edit of a few words in one function of the product, applied for the length of a test.

One whose words are not there any more fails loudly: the function has changed, and the mutation must follow.
"""

from __future__ import annotations

import inspect
import sys
import textwrap
from collections.abc import Callable
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
        source = textwrap.dedent(inspect.getsource(function))
        assert source.count(self.old) == 1, f"{self.function} has {source.count(self.old)} times {self.old!r}"
        code = compile(source.replace(self.old, self.new), inspect.getsourcefile(function) or "", "exec")
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
