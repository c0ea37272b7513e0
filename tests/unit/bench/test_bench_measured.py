"""What a bench says when what it measures does not start."""

from __future__ import annotations

import pytest
from measured import cluster


def test_an_upstream_that_does_not_start_is_named() -> None:
    said = r"the development cluster ended with 2 before its next line: .*changefeed-devcluster start --no-such-option"
    with pytest.raises(SystemExit, match=said), cluster("--no-such-option"):
        pass
