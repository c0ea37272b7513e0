"""The CRD: structural, bounded, no more and no less than the model; and the pages made from the same."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from changefeed.spec.crd import crd, crd_yaml
from changefeed.spec.field.kind import RULES
from changefeed.spec.model import Changefeed
from changefeed.spec.parse import effective, parse
from changefeed.spec.reference import configuration_reference
from changefeed.spec.sink.formats import CanalJsonSpec, Csv
from pydantic import BaseModel

ROOT = Path(__file__).parents[3]
INTERFACES_STATUS = [
    "conditions",
    "observedGeneration",
    "state",
    "message",
    "sink",
    "clusterId",
    "startTs",
    "sinkUri",
    "checkpointTs",
    "checkpointTime",
    "resolvedTs",
    "lagSeconds",
    "epoch",
    "tables",
    "rows",
    "initialCopy",
    "eventStoreMode",
    "lastDdl",
    "hold",
    "attempt",
    "image",
    "version",
    "attemptPhase",
    "attemptOutcome",
    "effectiveSpecHash",
    "configDigest",
    "liveSettings",
    "appliedSettings",
    "children",
    "stateUri",
    "restarts",
    "lastError",
]


def _version() -> dict[str, Any]:
    version: dict[str, Any] = crd()["spec"]["versions"][0]
    return version


def _root() -> dict[str, Any]:
    root: dict[str, Any] = _version()["schema"]["openAPIV3Schema"]
    return root


def _all(path: str, schema: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    yield path, schema
    for name, field in schema.get("properties", {}).items():
        yield from _all(f"{path}.{name}", field)
    if "items" in schema:
        yield from _all(f"{path}[]", schema["items"])


SCHEMAS = dict(_all("", _root()))


def test_the_file_is_what_the_model_gives() -> None:
    assert (ROOT / "crds/changefeeds.yaml").read_text() == crd_yaml()
    assert yaml.safe_load(crd_yaml()) == crd()
    assert "&id" not in crd_yaml()


@pytest.mark.parametrize("path", SCHEMAS)
def test_the_schema_is_structural(path: str) -> None:
    schema = SCHEMAS[path]
    assert ("type" in schema) != schema.get("x-kubernetes-int-or-string", False)
    assert not {"$ref", "title", "nullable", "allOf", "oneOf"} & schema.keys()
    maps = (
        ".status.restarts.failures",
        ".status.liveSettings",
        ".status.appliedSettings",
        ".spec.spark.serviceAccount.annotations",
    )
    assert ("additionalProperties" in schema) == (path in maps)
    assert not [word for word in schema if word.startswith("x-changefeed")]
    assert ("default" in schema) == (path == ".status")
    if "anyOf" in schema:
        assert schema["anyOf"] == [{"type": "integer"}, {"type": "string"}]
        assert schema["x-kubernetes-int-or-string"] is True


@pytest.mark.parametrize("path", SCHEMAS)
def test_everything_has_a_bound(path: str) -> None:
    schema = SCHEMAS[path]
    if schema.get("type") == "string" or "anyOf" in schema:
        assert 0 < schema["maxLength"] <= 32768
    if schema.get("type") == "array":
        assert 0 < schema["maxItems"] <= 1024
        assert schema["x-kubernetes-list-type"] in ("atomic", "map")
    if schema.get("type") == "integer":
        assert schema["format"] in ("int32", "int64")
    for pattern in [schema["pattern"]] if "pattern" in schema else []:
        assert pattern.startswith("^")
        assert pattern.endswith("$")
        re.compile(pattern)


@pytest.mark.parametrize("path", SCHEMAS)
def test_everything_is_described(path: str) -> None:
    if path != ".metadata":
        assert SCHEMAS[path].get("description"), path


@pytest.mark.parametrize("path", [path for path in SCHEMAS if RULES in SCHEMAS[path]])
def test_every_rule_says_what_to_write_instead(path: str) -> None:
    for each in SCHEMAS[path][RULES]:
        assert set(each) == {"rule", "message"}
        assert each["message"].startswith("allowed: ")
        assert len(each["message"]) < 300
        assert "\n" not in each["message"]


def test_status_starts_as_not_seen_and_has_the_agreed_fields() -> None:
    status = SCHEMAS[".status"]
    assert status["default"] == {"observedGeneration": -1}
    assert list(status["properties"]) == INTERFACES_STATUS
    assert "required" not in status
    assert status["properties"]["conditions"]["x-kubernetes-list-map-keys"] == ["type"]
    assert list(SCHEMAS[".status.lastError"]["properties"]) == ["class", "message", "time", "nextRetryTime"]
    kept = ["keptBytes", "mostBytes", "walStatus", "goneAt", "warning"]
    assert list(SCHEMAS[".status.hold"]["properties"]) == ["ts", "until", *kept, "lastError"]
    assert _version()["subresources"] == {"status": {}}


def test_people_see_what_matters() -> None:
    columns = {column["name"]: column for column in _version()["additionalPrinterColumns"]}
    assert list(columns) == ["State", "Ready", "Checkpoint", "Sink", "Age", "Lag", "Reason", "Message"]
    assert [name for name in columns if columns[name].get("priority")] == ["Lag", "Reason", "Message"]
    assert columns["Checkpoint"] | {"description": ""} == {
        "name": "Checkpoint",
        "type": "date",
        "jsonPath": ".status.checkpointTime",
        "description": "",
    }
    names = crd()["spec"]["names"]
    assert (names["shortNames"], names["categories"], crd()["spec"]["scope"]) == (["cf"], ["cdc"], "Namespaced")


def test_the_schema_has_the_models_fields_and_no_others() -> None:
    def below(path: str, model: type[BaseModel]) -> Iterator[str]:
        for field in model.model_fields.values():
            yield f"{path}.{field.alias}"
            for section in _sections(field.annotation):
                yield from below(f"{path}.{field.alias}", section)

    paths = {path.replace("[]", "") for path in SCHEMAS if path.startswith(".spec.")}
    spec = Changefeed.model_fields["spec"].annotation
    assert isinstance(spec, type)
    assert paths == set(below(".spec", spec))


def _sections(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for part in getattr(annotation, "__args__", ()):
        yield from _sections(part)


def test_what_we_write_ourselves_is_what_the_schema_takes() -> None:
    """The effective config, all defaults in it, has the types that the schema asks for."""
    resource = yaml.safe_load((ROOT / "tests/admission.yaml").read_text())["base"]
    config = effective(parse(yaml.safe_dump(resource)))
    checked = list(_types(".spec", config["spec"]))
    assert len(checked) > 40
    assert [path for path, right in checked if not right] == []


def _types(path: str, value: Any) -> Iterator[tuple[str, bool]]:
    schema = SCHEMAS[path]
    kinds = {"string": str, "integer": int, "boolean": bool, "object": dict, "array": list}
    kind = kinds[schema["type"]] if "type" in schema else str
    yield path, type(value) is kind
    if isinstance(value, dict) and not schema.get("x-kubernetes-preserve-unknown-fields"):
        for name, part in value.items():
            yield from _types(f"{path}.{name}", part)


def test_descriptions_tell_defaults_and_what_is_fixed() -> None:
    assert SCHEMAS[".spec.eventStore.quota"]["description"].endswith(
        'Allowed: a size from 64Mi to 16Ti, such as "64Mi". Default: "20Gi".'
    )
    assert "Can't be changed once the changefeed exists." in SCHEMAS[".spec.startTs"]["description"]


@pytest.mark.parametrize(
    "path", [path for path in SCHEMAS if "Can't be changed" in SCHEMAS[path].get("description", "")]
)
def test_what_is_called_fixed_has_a_rule_over_its_old_value(path: str) -> None:
    field = path.rpartition(".")[2]
    sections = [path[:end] for end, character in enumerate(path) if character == "."] + [path]
    rules = [each["rule"] for section in sections[1:] for each in SCHEMAS[section].get(RULES, [])]
    assert any("oldSelf" in text and (f".{field}" in text or text == "self == oldSelf") for text in rules)


def test_rules_about_defaults_are_made_from_them() -> None:
    text = " ".join(each["rule"] for each in SCHEMAS[".spec.sink.storage"][RULES])
    for options in (Csv(), CanalJsonSpec()):
        for name in options.model_dump(by_alias=True):
            assert f".{name} ==" in text or f".__{name}__ ==" in text


def test_the_reference_has_every_field() -> None:
    page = configuration_reference()
    fields = {path.rpartition(".")[2].rstrip("[]") for path in SCHEMAS if path.startswith(".spec.")}
    rows = "\n".join(line.split("|")[1] for line in page.splitlines() if line.startswith("| `"))
    assert {field for field in fields if not re.search(rf"\b{field}\b", rows) and f".{field}" not in page} == set()
    assert '| `fileSize` | size | `"64Mi"` | ' in page
    assert "| `pdAddresses` | list of URI | **required** | " in page
    assert "x-changefeed" not in page
