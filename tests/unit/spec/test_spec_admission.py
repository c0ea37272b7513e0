"""The model's side of tests/admission.yaml; tests/cluster/test_cluster_admission.py has the API server's."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from changefeed.spec.parse import parse
from changefeed.spec.problem import InvalidResource

ROOT = Path(__file__).parents[3]
CORPUS = yaml.safe_load((ROOT / "tests/admission.yaml").read_text())


def _resource(changes: dict[str, Any]) -> str:
    resource = copy.deepcopy(CORPUS["base"])
    for path, value in changes.items():
        *sections, field = path.split(".")
        section = resource
        for name in sections:
            section = section.setdefault(name, {})
        if value is None:
            section.pop(field, None)
        else:
            section[field] = value
    return json.dumps(resource)


def _problems(text: str) -> list[str]:
    try:
        parse(text)
    except InvalidResource as refused:
        return [problem.line for problem in refused.problems]
    return []


@pytest.mark.parametrize("case", CORPUS["cases"], ids=lambda case: case["name"])
def test_the_model_judges_as_the_corpus_says(case: dict[str, Any]) -> None:
    text = _resource(case.get("set", {}))
    words = case.get("refused") or case.get("model")
    lines = _problems(text)
    if words:
        assert words in lines[0]
    else:
        assert lines == []


@pytest.mark.parametrize("edit", CORPUS["edits"], ids=lambda edit: edit["name"])
def test_an_edit_is_between_two_resources_that_are_right_themselves(edit: dict[str, Any]) -> None:
    for changes in (edit["from"], edit["from"] | edit["to"]):
        assert _problems(_resource(changes)) == []


@pytest.mark.parametrize("path", sorted(ROOT.glob("examples/*.yaml")), ids=lambda path: path.name)
def test_every_example_is_valid(path: Path) -> None:
    parse(path.read_text())
