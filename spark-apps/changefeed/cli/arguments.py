"""Arguments shared by several commands."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from changefeed.errors import InvalidSpec

File = Annotated[
    Path, Parameter(name=["--file", "-f"], help="The Changefeed as YAML, the same file that kubectl apply takes.")
]
SecretsDir = Annotated[
    Path | None,
    Parameter(
        name="--secrets-dir",
        help="Folder of Secrets, laid out as pods mount them: DIR/<secretRef.name>/<key>. Without it, credentials come "
        "from the environment (AWS_ACCESS_KEY_ID ...). Required for spec.upstream.tls and spec.upstream.postgresql.",
    ),
]
Pd = Annotated[list[str], Parameter(name="--pd", negative="", help='Address of PD, such as "http://127.0.0.1:2379".')]
AsJson = Annotated[bool, Parameter(name="--json", negative="", help="Print one JSON object instead of text.")]
Namespace = Annotated[
    str | None, Parameter(name=["--namespace", "-n"], help="Namespace. Default: that of the kubeconfig context.")
]
Context = Annotated[str | None, Parameter(help="Kubeconfig context. Default: the current one.")]
Name = Annotated[str, Parameter(name="NAME", help="Name of the Changefeed.")]
Tables = Annotated[
    list[str] | None,
    Parameter(
        name="--table",
        negative="",
        help="Only tables that match this rule, as in spec.filter.rules; '!shop.other' excludes one. May be repeated.",
    ),
]


def selects(rules: list[str] | None) -> Callable[[str, str], bool]:
    """Tell whether a table, by schema and name, is to be taken; a database's own DDLs have the name ""."""
    from changefeed.spec.filter.table_filter import BadRule, TableFilter

    given = rules or ["*.*"]
    try:
        chosen = TableFilter(["*.*", *given] if all(rule.startswith("!") for rule in given) else given)
    except BadRule as error:
        raise InvalidSpec("--table", str(error)) from None
    return lambda schema, name: chosen.matches(schema, name) if name else chosen.matches_schema(schema)
