"""Rows, keys and jobs with wrong bytes are decoded or refused; `schema_fuzz.py` tries a million."""

from __future__ import annotations

from schema_fuzz import run


def test_rule_29_wrong_bytes_are_decoded_or_refused() -> None:
    outcomes = run(range(6000), print)
    assert outcomes.keys() == {
        f"{kind} {how}" for kind in ("value", "key", "odd", "job") for how in ("decoded", "refused")
    }
