"""A SQL condition, in MySQL's syntax, compiled against a table's columns to one polars expression.

The parser is sqlglot's. What it gives is taken part by part: what has no line in `_RULES` is refused by name, when the
condition is compiled, so that no row ever meets it. NULL is SQL's: neither true nor false.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from functools import reduce
from typing import Any

import polars as pl
import sqlglot
from sqlglot import TokenType, exp
from sqlglot.errors import SqlglotError

from changefeed.filter import collation as co
from changefeed.filter import letter_case
from changefeed.filter import values as va
from changefeed.filter.values import BadExpression, Operand

_COMPARISONS: dict[type[exp.Expression], Callable[[pl.Expr, pl.Expr], pl.Expr]] = {
    exp.EQ: pl.Expr.eq,
    exp.NEQ: pl.Expr.ne,
    exp.LT: pl.Expr.lt,
    exp.LTE: pl.Expr.le,
    exp.GT: pl.Expr.gt,
    exp.GTE: pl.Expr.ge,
    exp.NullSafeEQ: pl.Expr.eq_missing,
}
_IN_ORDER = (exp.LT, exp.LTE, exp.GT, exp.GTE, exp.Between)
#: MySQL reads a chain of these from the left, the parser does not always: whoever writes one must say what is meant.
_SAME_RANK = (*_COMPARISONS, exp.Is, exp.In, exp.Between, exp.Like, exp.Escape)
_TIMES = ("DATE", "DATETIME", "TIMESTAMP", "TIMESTAMPTZ")
_NAMES = (TokenType.VAR, TokenType.IDENTIFIER)
_CONSTANTS = (TokenType.STRING, TokenType.NUMBER)
_LONGEST_SHOWN = 60


def parsed(sql: str) -> exp.Expression:
    """The condition's tree. Raises BadExpression where it is none."""
    try:
        trees = [tree for tree in sqlglot.parse(sql, read="mysql") if tree is not None]
    except SqlglotError as error:
        problems = getattr(error, "errors", None) or [{}]
        column = problems[0].get("col")
        where = f"from character {column} on, " if column else ""
        raise BadExpression(f"{where}it is not a SQL condition") from None
    if len(trees) != 1 or not isinstance(trees[0], exp.Expression):
        raise BadExpression("it is not one SQL condition")
    return trees[0]


def _values(sql: str) -> int:
    """Names and constants in the text, but for functions: the parser drops arguments that it has no use for."""
    tokens = sqlglot.tokenize(sql, read="mysql")
    is_function = [token.token_type is TokenType.L_PAREN for token in tokens[1:]] + [False]
    return sum(
        token.token_type in _CONSTANTS or (token.token_type in _NAMES and not before_parenthesis)
        for token, before_parenthesis in zip(tokens, is_function, strict=True)
    )


def condition(sql: str, columns: Mapping[str, Operand]) -> pl.Expr:
    """Whether a row fits, never NULL. `columns`: the table's, by name in small letters.

    An integer instead of a condition fits where it is 1, as in TiCDC. Raises BadExpression.
    """
    tree = parsed(sql)
    value = _Compiler(columns).value(tree)
    if _values(sql) > sum(1 for _ in tree.find_all(exp.Column, exp.Literal)):
        raise BadExpression("a function has more arguments than it takes")
    if value.kind not in ("bool", "int", "null"):
        raise BadExpression(f"{value.said} is not a condition; compare it with something")
    fits = value.expr == 1 if value.kind == "int" else va.truth(value)
    return fits.fill_null(False)


def column_names(sql: str) -> set[str]:
    """The columns that the condition names, in small letters. Raises BadExpression."""
    return {column.name.lower() for column in parsed(sql).find_all(exp.Column)}


@dataclass(frozen=True)
class _Compiler:
    columns: Mapping[str, Operand]

    def value(self, tree: exp.Expression) -> Operand:
        rule = _RULES.get(type(tree))
        if rule is None:
            raise BadExpression(f"{_named(tree)} is not supported")
        return rule(self, tree)

    def operands(self, tree: exp.Expression) -> tuple[Operand, Operand]:
        return self.value(_operand(tree, tree.this)), self.value(_operand(tree, tree.expression))

    def truths(self, tree: exp.Expression) -> tuple[pl.Expr, pl.Expr]:
        for side in (tree.this, tree.expression):
            mixed = isinstance(tree, exp.Xor) != isinstance(side, exp.Xor)
            if mixed and isinstance(side, exp.And | exp.Or | exp.Xor):
                raise BadExpression(f"write parentheses around {_said(side)}")
        return va.truth(self.value(tree.this)), va.truth(self.value(tree.expression))


def _operand(tree: exp.Expression, side: exp.Expression) -> exp.Expression:
    if isinstance(side, (*_SAME_RANK, exp.Not)):
        raise BadExpression(f"write parentheses around {_said(side)} in {_said(tree)}")
    return side


def _said(tree: exp.Expression) -> str:
    sql = tree.sql(dialect="mysql", comments=False)
    return sql if len(sql) <= _LONGEST_SHOWN else sql[: _LONGEST_SHOWN - 3] + "..."


def _named(tree: exp.Expression) -> str:
    if isinstance(tree, exp.Anonymous):
        return f"the function {tree.name.upper()}"
    return f"the function {tree.sql_name()}" if isinstance(tree, exp.Func) else _said(tree)


def _column(compiler: _Compiler, tree: exp.Expression) -> Operand:
    assert isinstance(tree, exp.Column)
    if tree.table:
        raise BadExpression(f"{_said(tree)}: write the column without its table")
    column = compiler.columns.get(tree.name.lower())
    if column is None:
        raise BadExpression(f"there is no column {tree.name}")
    return column


def _literal(compiler: _Compiler, tree: exp.Expression) -> Operand:
    content, said = str(tree.this), _said(tree)
    if tree.is_string:
        return va.text(content, said)
    if "e" in content.lower():
        return va.real(float(content), said)
    return va.decimal(Decimal(content), said) if "." in content else va.whole(int(content), said)


def _boolean(compiler: _Compiler, tree: exp.Expression) -> Operand:
    return va.boolean(pl.lit(bool(tree.this)), _said(tree))


def _time(compiler: _Compiler, tree: exp.Expression) -> Operand:
    """DATE '2026-11-23' is a cast to the parser."""
    if not (tree.this.is_string and tree.args["to"].this.name in _TIMES):
        raise BadExpression(f"{_said(tree)} is not supported")
    return va.time(str(tree.this.this), _said(tree))


def _comparison(compiler: _Compiler, tree: exp.Expression) -> Operand:
    return _compared(tree, *compiler.operands(tree))


def _compared(tree: exp.Expression, left: Operand, right: Operand, kind: type[exp.Expression] | None = None) -> Operand:
    kind = kind or type(tree)
    said = _said(tree)
    if "null" in (left.kind, right.kind):
        if kind is not exp.NullSafeEQ:
            return va.null(said)
        return va.boolean(left.expr.is_null() & right.expr.is_null(), said)
    left, right = va.alike(left, right)
    if left.kind == "text" and kind in _IN_ORDER and not co.has_order(left.collation):
        raise BadExpression(f"{said}: the order of texts under {left.collation} is not supported")
    one, other = _plain(left), _plain(right)
    return va.boolean(_COMPARISONS[kind](one, other), said)


def _plain(value: Operand) -> pl.Expr:
    return co.folded(value.expr, value.collation) if value.kind == "text" else value.expr


def _between(compiler: _Compiler, tree: exp.Expression) -> Operand:
    value, low, high = (compiler.value(_operand(tree, tree.args[name])) for name in ("this", "low", "high"))
    above, below = _compared(tree, value, low, exp.GTE), _compared(tree, value, high, exp.LTE)
    return va.boolean(va.truth(above) & va.truth(below), _said(tree))


def _in(compiler: _Compiler, tree: exp.Expression) -> Operand:
    if not tree.expressions:
        raise BadExpression(f"{_said(tree)}: IN takes a list of values")
    value = compiler.value(_operand(tree, tree.this))
    equal = [_compared(tree, value, compiler.value(member), exp.EQ) for member in tree.expressions]
    return va.boolean(reduce(pl.Expr.or_, map(va.truth, equal)), _said(tree))


def _like(compiler: _Compiler, tree: exp.Expression, escape: str = "\\") -> Operand:
    value, pattern = compiler.operands(tree)
    if "null" in (value.kind, pattern.kind):
        return va.null(_said(tree))
    if value.kind != "text" or not isinstance(pattern.constant, str):
        raise BadExpression(f"{_said(tree)}: LIKE takes a text and a constant pattern")
    expression = _as_regex(pattern.constant, escape, value.collation)
    fits = co.folded_for_like(value.expr, value.collation).str.contains(expression)
    return va.boolean(~fits if tree.args.get("negate") else fits, _said(tree))


def _as_regex(pattern: str, escape: str, collation: str) -> str:
    """What a folded text must match to be LIKE the pattern."""
    parts, escaped = [], False
    for character in pattern:
        if not escaped and character == escape:
            escaped = True
            continue
        wild = {"%": ".*", "_": "."}.get(character) if not escaped else None
        parts.append(wild or _literally(character, collation))
        escaped = False
    return f"(?s)^{''.join(parts)}{_literally(escape, collation) if escaped else ''}$"


def _literally(character: str, collation: str) -> str:
    form: str = pl.select(co.folded_for_like(pl.lit(character), collation)).item()
    return re.escape(form)


def _escape(compiler: _Compiler, tree: exp.Expression) -> Operand:
    escape = str(tree.expression.this) if tree.expression.is_string else None
    if not isinstance(tree.this, exp.Like) or escape is None or len(escape) > 1:
        raise BadExpression(f"{_said(tree)}: ESCAPE takes one character")
    return _like(compiler, tree.this, escape)


def _is(compiler: _Compiler, tree: exp.Expression) -> Operand:
    value, wanted = compiler.value(_operand(tree, tree.this)), tree.expression
    if isinstance(wanted, exp.Null):
        return va.boolean(value.expr.is_null(), _said(tree))
    if not isinstance(wanted, exp.Boolean):
        raise BadExpression(f"{_said(tree)}: IS takes NULL, TRUE or FALSE")
    truth = va.truth(value)
    return va.boolean((truth if wanted.this else ~truth).fill_null(False), _said(tree))


def _not(compiler: _Compiler, tree: exp.Expression) -> Operand:
    return va.boolean(~va.truth(compiler.value(tree.this)), _said(tree))


def _connected(join: Callable[[pl.Expr, pl.Expr], pl.Expr]) -> _Rule:
    def rule(compiler: _Compiler, tree: exp.Expression) -> Operand:
        return va.boolean(join(*compiler.truths(tree)), _said(tree))

    return rule


def _negative(compiler: _Compiler, tree: exp.Expression) -> Operand:
    value, said = compiler.value(tree.this), _said(tree)
    match value.constant:
        case int(number):
            return va.whole(-number, said)
        case Decimal() as number:
            return va.decimal(-number, said)
    return _arithmetic(tree, va.whole(0, "0"), value, pl.Expr.sub)


def _calculated(operation: Callable[[pl.Expr, pl.Expr], pl.Expr]) -> _Rule:
    def rule(compiler: _Compiler, tree: exp.Expression) -> Operand:
        return _arithmetic(tree, *compiler.operands(tree), operation)

    return rule


def _arithmetic(
    tree: exp.Expression, left: Operand, right: Operand, operation: Callable[[pl.Expr, pl.Expr], pl.Expr]
) -> Operand:
    said = _said(tree)
    if "null" in (left.kind, right.kind):
        return va.null(said)
    if {left.kind, right.kind} <= {"int", "bool"}:
        one, other = left.expr.cast(pl.Int128), right.expr.cast(pl.Int128)
        return Operand("int", operation(one, other), said, width="i128", digits=max(left.digits, right.digits) + 1)
    if operation is not _remainder and {left.kind, right.kind} <= {"int", "bool", "real"}:
        return Operand("real", operation(left.expr.cast(pl.Float64), right.expr.cast(pl.Float64)), said)
    raise BadExpression(f"{said}: only integers can be calculated with, and with + and - DOUBLE, too")


def _remainder(left: pl.Expr, right: pl.Expr) -> pl.Expr:
    """It has the sign of the first; by 0 it is NULL."""
    size = left.abs() % pl.when(right != 0).then(right.abs())
    return pl.when(left < 0).then(0 - size).otherwise(size)


def _coalesce(compiler: _Compiler, tree: exp.Expression) -> Operand:
    found = [compiler.value(part) for part in (tree.this, *tree.expressions)]
    return _either(tree, found, lambda values: pl.coalesce([value.expr for value in values]))


def _if(compiler: _Compiler, tree: exp.Expression) -> Operand:
    if tree.args.get("false") is None:
        raise BadExpression(f"{_said(tree)}: IF takes three arguments")
    test = va.truth(compiler.value(tree.this)).fill_null(False)
    found = [compiler.value(tree.args[name]) for name in ("true", "false")]
    return _either(tree, found, lambda values: pl.when(test).then(values[0].expr).otherwise(values[1].expr))


def _either(tree: exp.Expression, found: list[Operand], choose: Callable[[list[Operand]], pl.Expr]) -> Operand:
    if all(value.kind == "null" for value in found):
        return va.null(_said(tree))
    values = va.in_common(found)
    first = values[0]
    digits = max(value.digits for value in values)
    return Operand(first.kind, choose(values), _said(tree), None, first.collation, first.scale, digits, first.width)


def _of_text(function: Callable[[pl.Expr], pl.Expr], gives: va.Kind) -> _Rule:
    def rule(compiler: _Compiler, tree: exp.Expression) -> Operand:
        value = compiler.value(tree.this)
        if value.kind == "null":
            return va.null(_said(tree))
        if value.kind != "text":
            raise BadExpression(f"{_said(tree)}: {_named(tree)} takes a text")
        collation = value.collation if gives == "text" else co.ANY
        expr = function(value.expr)
        return Operand(gives, expr.cast(pl.Int64) if gives == "int" else expr, _said(tree), None, collation)

    return rule


def _length(compiler: _Compiler, tree: exp.Expression) -> Operand:
    """LENGTH counts bytes, CHAR_LENGTH characters."""
    in_bytes = bool(tree.args.get("binary"))
    return _of_text(lambda text: text.str.len_bytes() if in_bytes else text.str.len_chars(), "int")(compiler, tree)


_Rule = Callable[[_Compiler, Any], Operand]
_RULES: dict[type[exp.Expression], _Rule] = {
    exp.Column: _column,
    exp.Literal: _literal,
    exp.Null: lambda compiler, tree: va.null("NULL"),
    exp.Boolean: _boolean,
    exp.Cast: _time,
    exp.Paren: lambda compiler, tree: compiler.value(tree.this),
    **dict.fromkeys(_COMPARISONS, _comparison),
    exp.Between: _between,
    exp.In: _in,
    exp.Like: _like,
    exp.Escape: _escape,
    exp.Is: _is,
    exp.Not: _not,
    exp.And: _connected(pl.Expr.and_),
    exp.Or: _connected(pl.Expr.or_),
    exp.Xor: _connected(pl.Expr.xor),
    exp.Neg: _negative,
    exp.Add: _calculated(pl.Expr.add),
    exp.Sub: _calculated(pl.Expr.sub),
    exp.Mod: _calculated(_remainder),
    exp.Coalesce: _coalesce,
    exp.If: _if,
    exp.Lower: _of_text(letter_case.lower, "text"),
    exp.Upper: _of_text(letter_case.upper, "text"),
    exp.Length: _length,
}
