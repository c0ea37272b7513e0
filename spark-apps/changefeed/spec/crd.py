"""The CustomResourceDefinition, made from the model: `make generate` writes it to crds/changefeeds.yaml.

Structural, every string and list bounded (the API server budgets what its rules cost), no defaults in the spec: they
are the code's, so that a new version can change one without changing what is stored.
"""

from __future__ import annotations

from typing import Any

import yaml

from changefeed.spec.field.kind import ALLOWED, FIXED, LIVE, RULES, SINCE, TYPE, cel_text, rule
from changefeed.spec.field.shape import shape
from changefeed.spec.model import DNS_1035, LONGEST_NAME, NAME_ALLOWED, Spec
from changefeed.spec.names import API_VERSION, GROUP, KIND, PLURAL, VERSION
from changefeed.spec.status import ChangefeedStatus

_HEADER = "# Made from the model in spark-apps/changefeed/spec by `make generate`; don't edit.\n"
_OUR_WORDS = {TYPE, ALLOWED, FIXED, LIVE, SINCE, "default"}
#: The order of a schema's words; those not here follow.
_FIRST = ("description", "type", "required", "properties")


def crd() -> dict[str, Any]:
    """The manifest."""
    names = {
        "kind": KIND,
        "listKind": f"{KIND}List",
        "plural": PLURAL,
        "singular": KIND.lower(),
        "shortNames": ["cf"],
        "categories": ["cdc"],
    }
    version = {
        "name": VERSION,
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": _root()},
        "subresources": {"status": {}},
        "additionalPrinterColumns": _columns(),
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{PLURAL}.{GROUP}"},
        "spec": {"group": GROUP, "names": names, "scope": "Namespaced", "versions": [version]},
    }


def crd_yaml() -> str:
    """The manifest as the file that is checked in."""
    return _HEADER + yaml.dump(crd(), Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=120)


class _Dumper(yaml.SafeDumper):
    """Writes what stands twice twice: people read this file."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _root() -> dict[str, Any]:
    name = "self.metadata.name"
    pattern = cel_text(f"^{DNS_1035}$")
    return {
        "description": "Row changes of a TiKV/TiDB cluster or a PostgreSQL database, to one sink.",
        "type": "object",
        "required": ["spec"],
        "properties": {
            "apiVersion": {"type": "string", "maxLength": 64, "description": f"Always {API_VERSION}."},
            "kind": {"type": "string", "maxLength": 64, "description": f"Always {KIND}."},
            "metadata": {"type": "object"},
            "spec": {"description": "What is wanted.", **_structural(shape(Spec))},
            "status": {
                **_structural(shape(ChangefeedStatus)),
                # A tool that waits must not take a changefeed that the operator has not seen yet for a settled one.
                "default": {"observedGeneration": -1},
            },
        },
        RULES: [
            rule(f"size({name}) <= {LONGEST_NAME} && {name}.matches({pattern})", f"a metadata.name of {NAME_ALLOWED}")
        ],
    }


def _structural(schema: dict[str, Any]) -> dict[str, Any]:
    """Only what the API server knows; what we say beside that goes into the description."""
    description = " ".join([_sentence(schema.get("description", "")), *_notes(schema)]).strip()
    words = {**schema, **({"description": description} if description else {})}
    if "items" in words:
        words["items"] = _structural(words["items"])
    if "properties" in words:
        words["properties"] = {name: _structural(field) for name, field in words["properties"].items()}
    ordered = sorted(words, key=lambda word: _FIRST.index(word) if word in _FIRST else len(_FIRST))
    return {word: words[word] for word in ordered if word not in _OUR_WORDS}


def _sentence(text: str) -> str:
    return " ".join(text.split())


def _notes(schema: dict[str, Any]) -> list[str]:
    notes = []
    if ALLOWED in schema:
        notes.append(f"Allowed: {schema[ALLOWED]}.")
    if "default" in schema and not isinstance(schema["default"], dict):
        notes.append(f"Default: {cel_text(schema['default'])}.")
    if FIXED in schema:
        notes.append(f"Can't be changed {schema[FIXED]}.")
    if LIVE in schema:
        notes.append("An edit takes no restart.")
    if SINCE in schema:
        notes.append(f"Since version {schema[SINCE]}.")
    return notes


def _columns() -> list[dict[str, Any]]:
    ready = '.status.conditions[?(@.type=="Ready")]'
    checkpoint = "How long ago the sink was complete: everything committed before is in it."
    columns = [
        ("State", "string", ".status.state", "Pending, Normal, Warning, Failed, Stopped or Finished."),
        ("Ready", "string", f"{ready}.status", "Whether what is wanted is reached."),
        ("Checkpoint", "date", ".status.checkpointTime", checkpoint),
        ("Sink", "string", ".status.sink", "The kind of sink."),
        ("Age", "date", ".metadata.creationTimestamp", ""),
        ("Lag", "integer", ".status.lagSeconds", "Seconds from the checkpoint to the upstream, when it was written."),
        ("Reason", "string", f"{ready}.reason", "Why it is ready, or not."),
        ("Message", "string", ".status.message", "One sentence, with the next step."),
    ]
    return [
        {
            "name": name,
            "type": kind,
            "jsonPath": path,
            **({"description": description} if description else {}),
            **({"priority": 1} if name in ("Lag", "Reason", "Message") else {}),
        }
        for name, kind, path, description in columns
    ]
