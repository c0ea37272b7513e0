"""What the class of an error says: whoever restarts a changefeed, and whoever is called, decide by it."""

from __future__ import annotations

import ast
from pathlib import Path

from changefeed import errors
from changefeed.spec.problem import InvalidResource

PRODUCT = Path(__file__).parents[2] / "spark-apps" / "changefeed"
#: They end a query of the data source, or never leave their module.
NO_CHANGEFEEDS = {"SchemaChanged", "UnknownCall"}


def test_each_error_that_stops_a_changefeed_is_one_that_the_operator_and_the_reference_know() -> None:
    known = {*errors.stopping(), InvalidResource.__name__}
    bases = known | NO_CHANGEFEEDS | {"Refused"}
    found = {
        node.name
        for path in PRODUCT.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ClassDef)
        and any(isinstance(base, ast.Name) and base.id in bases for base in node.bases)
    }
    assert found - NO_CHANGEFEEDS - {"Refused"} <= known
    assert {"SinkOwned", "DuplicateKey", "UnknownThing", "OtherDefinition", "ExecuteByHand", "UnclearDdl"} <= found


def test_who_is_refused_may_be_let_in_later() -> None:
    assert "Refused" not in errors.stopping()
    assert all(issubclass(each, errors.ChangefeedError) for each in errors.stopping().values())
