"""What is kept from one file to the next is the same as if it were made anew."""

from __future__ import annotations

import json

import pytest
from changefeed.pipeline import recipe
from changefeed.pipeline.recipe import Recipe, Recipes
from pipeline_rows import PEOPLE, encode_file, insert, make_table, make_work, mounts

OTHER = make_table([{"id": 1, "name": {"O": "a"}, "type": {"Tp": 8}, "state": 5}])


def test_files_of_one_table_and_config_share_one() -> None:
    recipes = Recipes(mounts)
    (first, _), (again, _), (other, _) = make_work([]), make_work([]), make_work([], OTHER)
    made = recipes.of(first, PEOPLE.hash)
    assert recipes.of(other, OTHER.hash) == Recipe.of(json.loads(other.config), OTHER, mounts)
    assert recipes.of(again, PEOPLE.hash) is made
    assert made == Recipe.of(json.loads(first.config), PEOPLE, mounts)


def test_rule_10_files_of_another_config_have_another_one(tmp_path) -> None:
    contents = [
        encode_file(tmp_path, [insert(5, 1, 2, "Ann")], includeCommitTs=shown)[1] for shown in (True, False, True)
    ]
    assert contents == [b'"I","t","shop",5,1,2,"Ann"\n', b'"I","t","shop",1,2,"Ann"\n', contents[0]]


def test_no_more_are_kept_than_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recipe, "KEPT", 1)
    recipes = Recipes(mounts)
    (first, _), (other, _) = make_work([]), make_work([], OTHER)
    made = recipes.of(first, PEOPLE.hash)
    recipes.of(other, OTHER.hash)
    assert recipes.of(first, PEOPLE.hash) is not made
