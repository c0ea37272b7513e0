"""What a DDL's text says about tables, columns and partitions.

Words are sqlglot's tokens; its grammar can't parse much of TiDB's ALTER TABLE, so clauses are recognised by their first
words. What is not needed to follow rows (types, options, indexes) is not read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import sqlglot
from sqlglot import TokenType
from sqlglot.errors import SqlglotError

from changefeed.reading.schema.columns import TableColumn

Name = tuple[str, str]  # (database, table)

_OBJECTS = ("TABLE", "VIEW", "DATABASE", "SCHEMA", "INDEX", "SEQUENCE")
#: After ADD or DROP these begin another thing than a column.
_NO_COLUMN = frozenset(
    {
        *("INDEX", "KEY", "UNIQUE", "PRIMARY", "FULLTEXT", "SPATIAL", "VECTOR", "COLUMNAR"),
        *("CONSTRAINT", "FOREIGN", "CHECK", "PARTITION", "STATS_EXTENDED"),
    }
)


@dataclass
class ParsedStatement:
    """`verb`: as "alter table". `changed`: a column's new name by its old one. Column names are in lower case."""

    verb: str
    tables: list[Name] = field(default_factory=list)  # in their order; of one that is renamed both names
    renames: list[tuple[Name, Name]] = field(default_factory=list)
    added: list[str] = field(default_factory=list)
    dropped: list[str] = field(default_factory=list)
    changed: dict[str, str] = field(default_factory=dict)
    partitions: list[str] = field(default_factory=list)

    def names(self, schema: str, table: str) -> bool:
        return key_of((schema, table)) in map(key_of, self.tables)

    def unmade(self, before: Sequence[TableColumn], after: Sequence[TableColumn]) -> str:
        """Where it does not make the columns after of those before, "" if it does."""
        left = [column.name.lower() for column in before if column.name.lower() not in self.dropped]
        made = {self.changed.get(name, name) for name in left} | set(self.added)
        return ", ".join(sorted(made ^ {column.name.lower() for column in after}))


NO_STATEMENT = ParsedStatement("")


def key_of(name: Name) -> Name:
    """By which tables are known: TiDB's names are the same in capital and small letters."""
    schema, table = name
    return schema.lower(), table.lower()


def parse(query: str, schema: str) -> ParsedStatement | None:
    """`schema`: of names that say none. None: nobody knows what it is."""
    try:
        words = list(_words(query))
        return _StatementReader(words, schema).statement()
    except (SqlglotError, IndexError):
        return None


@dataclass(frozen=True)
class _Word:
    text: str
    quoted: bool = False

    @property
    def key(self) -> str:
        return "" if self.quoted else self.text.upper()


def _words(query: str) -> Iterator[_Word]:
    tokens = sqlglot.tokenize(query, read="mysql")
    if len(tokens) == 2 and tokens[0].token_type is TokenType.RENAME:  # the rest is one token
        yield _Word("RENAME")
        tokens = sqlglot.tokenize(tokens[1].text, read="mysql")
    for token in tokens:
        if token.token_type in (TokenType.IDENTIFIER, TokenType.STRING):
            yield _Word(token.text, quoted=True)
        else:
            yield from (_Word(text) for text in token.text.split())


class _StatementReader:
    """Goes over the words once. An end that comes too early is an IndexError."""

    def __init__(self, words: list[_Word], schema: str) -> None:
        self._words = words
        self._schema = schema
        self._at = 0

    def statement(self) -> ParsedStatement | None:
        match self._next().key:
            case "CREATE":
                return self._create()
            case "DROP":
                return self._drop()
            case "ALTER":
                return self._alter()
            case "TRUNCATE":
                self._skip("TABLE")
                return ParsedStatement("truncate table", [self._name()])
            case "RENAME":
                self._skip("TABLE")
                return self._renames(ParsedStatement("rename table"))
            case "FLASHBACK" | "RECOVER":
                return self._recover()
            case "ADMIN":
                self._skip("REPAIR", "TABLE")
                return ParsedStatement("admin repair table", [self._name()])
        return None

    def _create(self) -> ParsedStatement | None:
        while (kind := self._next().key) not in _OBJECTS:
            pass
        if kind == "INDEX":
            return self._of_index("create index")
        self._skip("IF", "NOT", "EXISTS")
        if kind in ("DATABASE", "SCHEMA"):
            return ParsedStatement("create database", [(self._next().text, "")])
        made = ParsedStatement(f"create {kind.lower()}", [self._name()])
        while kind == "TABLE" and self._at < len(self._words):  # one job may make several
            if self._next().key == ";" and self._has("CREATE"):
                made.tables += self._create_another()
        return made

    def _create_another(self) -> list[Name]:
        while self._next().key != "TABLE":
            pass
        self._skip("IF", "NOT", "EXISTS")
        return [self._name()]

    def _drop(self) -> ParsedStatement | None:
        kind = self._next().key
        if kind == "INDEX":
            return self._of_index("drop index")
        self._skip("IF", "EXISTS")
        if kind in ("DATABASE", "SCHEMA"):
            return ParsedStatement("drop database", [(self._next().text, "")])
        dropped = ParsedStatement(f"drop {kind.lower()}", [self._name()])
        while self._has(","):
            dropped.tables.append(self._name())
        return dropped

    def _of_index(self, verb: str) -> ParsedStatement:
        while self._next().key != "ON":
            pass
        return ParsedStatement(verb, [self._name()])

    def _renames(self, renamed: ParsedStatement) -> ParsedStatement:
        is_more = True
        while is_more:
            old = self._name()
            self._skip("TO")
            self._add_rename(renamed, old, self._name())
            is_more = self._has(",")
        return renamed

    def _add_rename(self, renamed: ParsedStatement, old: Name, new: Name) -> None:
        renamed.renames.append((old, new))
        renamed.tables += [old, new]

    def _recover(self) -> ParsedStatement | None:
        self._skip("TABLE")
        if self._peek() == "BY":
            return ParsedStatement("recover table")
        old = self._name()
        recovered = ParsedStatement("recover table", [old])
        self._add_rename(recovered, old, self._name() if self._has("TO") else old)
        return recovered

    def _alter(self) -> ParsedStatement | None:
        kind = self._next().key
        if kind in ("DATABASE", "SCHEMA"):
            return ParsedStatement("alter database", [(self._next().text, "")])
        if kind != "TABLE":
            return None
        table = self._name()
        altered = ParsedStatement("alter table", [table])
        while self._at < len(self._words):
            self._clause(altered, table)
            self._to_comma()
        return altered

    def _clause(self, altered: ParsedStatement, table: Name) -> None:
        match self._next().key:
            case "ADD" if self._is_of_column():
                self._add_columns(altered)
            case "DROP" if self._is_of_column():
                altered.dropped.append(self._next().text.lower())
            case "CHANGE":
                self._skip("COLUMN")
                self._skip("IF", "EXISTS")
                old = self._next().text.lower()
                altered.changed[old] = self._next().text.lower()
            case "RENAME" if self._has("COLUMN"):
                old = self._next().text.lower()
                self._skip("TO")
                altered.changed[old] = self._next().text.lower()
            case "RENAME" if self._peek() not in ("INDEX", "KEY"):
                _ = self._has("TO") or self._has("AS")
                self._add_rename(altered, table, self._name())
            case "EXCHANGE":
                self._skip("PARTITION")
                altered.partitions.append(self._next().text)
                self._skip("WITH", "TABLE")
                altered.tables.append(self._name())
            case "DROP" | "TRUNCATE" | "REORGANIZE" if self._has("PARTITION"):
                self._skip("IF", "EXISTS")
                altered.partitions.append(self._next().text)
                while self._has(","):
                    altered.partitions.append(self._next().text)

    def _is_of_column(self) -> bool:
        """Whether what follows ADD or DROP is a column; the word COLUMN and what belongs to it are left behind."""
        is_said = self._has("COLUMN")
        if not is_said and self._peek() in _NO_COLUMN:
            return False
        self._skip("IF", "NOT", "EXISTS")
        self._skip("IF", "EXISTS")
        return True

    def _add_columns(self, altered: ParsedStatement) -> None:
        if not self._has("("):
            altered.added.append(self._next().text.lower())
            return
        is_more = True
        while is_more:
            altered.added.append(self._next().text.lower())
            self._to_comma()
            is_more = self._words[self._at - 1].key == ","

    # -- words

    def _next(self) -> _Word:
        self._at += 1
        return self._words[self._at - 1]

    def _peek(self) -> str:
        return self._words[self._at].key if self._at < len(self._words) else ""

    def _has(self, key: str) -> bool:
        """Whether it comes next; it is left behind then."""
        found = self._peek() == key
        self._at += found
        return found

    def _skip(self, *keys: str) -> None:
        """Leaves these behind if all of them come next."""
        if [word.key for word in self._words[self._at : self._at + len(keys)]] == list(keys):
            self._at += len(keys)

    def _name(self) -> Name:
        name = self._next().text
        return (name, self._next().text) if self._has(".") else (self._schema, name)

    def _to_comma(self) -> None:
        """Behind the next comma that no parentheses enclose, or behind the parenthesis that encloses this."""
        depth = 0
        while self._at < len(self._words):
            key = self._next().key
            depth += (key == "(") - (key == ")")
            if depth < 0 or (key == "," and not depth):
                return
