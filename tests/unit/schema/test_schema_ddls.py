"""The table of DDLs holds every one, each once, and the parts that go by it agree."""

from __future__ import annotations

from changefeed.schema.ddl.actions import Action
from changefeed.schema.ddl.ddls import DDLS, Effect, effect_of
from changefeed.spec.filter.event_types import DDLS as EVENT_TYPES
from changefeed_devcluster.ddl.jobs import JobType

_OF_NEWER_TIDBS = {"add fulltext index", "create hybrid index"}
_ALIASES = {"create schema", "drop schema"}


def test_every_action_is_in_the_table() -> None:
    assert sorted(DDLS) == sorted(Action)


def test_an_action_that_nobody_knows_cannot_be_followed() -> None:
    assert effect_of(999) is Effect.UNFOLLOWABLE


def test_each_name_of_an_event_type_is_that_of_a_ddl() -> None:
    named = {ddl.event_type for ddl in DDLS.values()} - {""}
    assert named == set(EVENT_TYPES) - _OF_NEWER_TIDBS - _ALIASES


def test_statements_tell_ddls_apart() -> None:
    statements = [ddl.statement for ddl in DDLS.values()]
    assert len(set(statements)) == len(statements)


def test_the_development_clusters_numbers_are_the_same() -> None:
    assert {kind.name: int(kind) for kind in JobType} == {kind.name: int(Action[kind.name]) for kind in JobType}
