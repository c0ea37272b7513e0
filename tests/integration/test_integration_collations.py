"""The weights that the package has are those of each collation's own definition."""

from __future__ import annotations

from pathlib import Path

from integration_collations import all_weights, stored
from integration_mariadb import running


def test_the_weights_are_those_of_the_definitions(tmp_path: Path) -> None:
    with running(tmp_path) as server:
        defined = all_weights(server)
    found = stored()
    assert found.keys() == defined.keys()
    for name, weights in defined.items():
        different = {code for code in weights.keys() | found[name].keys() if weights.get(code) != found[name].get(code)}
        assert not different, f"{name}: run make collations"
