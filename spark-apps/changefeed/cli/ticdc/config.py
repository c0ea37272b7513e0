"""A TiCDC changefeed's sink URI and configuration as a Changefeed (facts/ticdc-compatibility.md 1.1).

Nothing is dropped in silence: what has no equivalent, and differs from TiCDC's default, is named in a note. No note
and no resource holds a credential. Does no I/O.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import SplitResult, parse_qsl, urlencode, urlsplit

import yaml

from changefeed.cli.ticdc.keys import (
    CANAL,
    LATER,
    MEMBERS,
    PLACE_PARAMETERS,
    SAME,
    SECRETS,
    STORAGE,
    STORES,
    URI_KEYS,
    WIDER,
    WITHOUT,
)
from changefeed.errors import InvalidSpec
from changefeed.spec.field.quantity import format_size
from changefeed.spec.names import API_VERSION, KIND
from changefeed.spec.parse import parse
from changefeed.spec.problem import InvalidResource

_SINK_URI = "s3://bucket/folder?protocol=csv or file:///folder?protocol=canal-json"
#: Values that are another word here.
_WORDS = {w.lower(): w for w in ("Throughput", "None", "Correctness", "Warn", "Error")}
_MAY_BE_SECRET = re.compile("user|passw|secret|token|key|credential|registry|kafka|mysql|storage$", re.IGNORECASE)
_RENAMED = ("spec.mode", "spec.integrity.level", "spec.integrity.onCorruption")


@dataclass(frozen=True)
class Source:
    """A TiCDC changefeed: what its `create` was given."""

    sink_uri: str
    config: Mapping[str, Any]  # the TOML
    pd: tuple[str, ...] = ()
    start_ts: str | None = None
    target_ts: str | None = None
    name: str = "imported"
    namespace: str | None = None


@dataclass(frozen=True)
class Converted:
    """`notes`: what is not as it was, and what is to do."""

    resource: dict[str, Any]
    notes: tuple[str, ...]


@dataclass
class _Draft:
    resource: dict[str, Any]
    notes: list[str] = field(default_factory=list)

    def put(self, path: str, value: object) -> None:
        *sections, name = path.split(".")
        section = self.resource
        for part in sections:
            section = section.setdefault(part, {})
        section[name] = value


def convert(source: Source) -> Converted:
    """The Changefeed, and what has no equivalent in it.

    Raises InvalidSpec for a sink URI whose scheme no Changefeed can have.
    """
    metadata = {"name": source.name, **({"namespace": source.namespace} if source.namespace else {})}
    draft = _Draft({"apiVersion": API_VERSION, "kind": KIND, "metadata": metadata, "spec": {}})
    draft.put("spec.upstream.pdAddresses", list(source.pd) or ["http://pd:2379"])
    if not source.pd:
        draft.notes.append("spec.upstream.pdAddresses: write where PD of the upstream is (--pd)")
    for path, ts in (("spec.startTs", source.start_ts), ("spec.targetTs", source.target_ts)):
        if ts is not None:
            draft.put(path, ts)
    if source.start_ts is None:
        draft.notes.append("spec.startTs: without it, it starts now; TiCDC's checkpoint would go on from there")
    parameters = _sink(draft, source)
    keys = dict(_flat("", source.config)) | {URI_KEYS[name]: value for name, value in parameters.items()}
    _settings(draft, keys)
    try:
        parse(json.dumps(draft.resource))
    except InvalidResource as refused:
        draft.notes += [f"to mend: {problem.line}" for problem in refused.problems]
    return Converted(draft.resource, tuple(draft.notes))


def to_yaml(converted: Converted) -> str:
    """The resource, with the notes as comments before it."""
    head = ["# Made from a TiCDC changefeed by `changefeed import`."]
    head += ["# Not as it was, or to do:"] if converted.notes else []
    head += [f"# - {' '.join(note.split())}" for note in converted.notes]
    text = yaml.safe_dump(converted.resource, sort_keys=False, allow_unicode=True, width=120)
    return "\n".join([*head, text])


def _sink(draft: _Draft, source: Source) -> dict[str, str]:
    """Writes the sink's kind and place. Gives the URI's parameters that the configuration has, too."""
    try:
        parts = urlsplit(source.sink_uri)
        _ = parts.port
    except ValueError:
        raise InvalidSpec("--sink-uri", f"no URI; allowed: {_SINK_URI}") from None
    parameters = dict(parse_qsl(parts.query, keep_blank_values=True))
    known = {name: parameters.pop(name) for name in tuple(parameters) if name in URI_KEYS}
    host, scheme = parts.netloc.rpartition("@")[2], parts.scheme.removesuffix("+ssl")
    if scheme in STORES:
        _storage(draft, source.name, parts, parameters)
    elif scheme in ("mysql", "tidb"):
        draft.put("spec.sink.mysql.uri", f"mysql://{host}")
    elif scheme == "kafka":
        draft.put("spec.sink.kafka.uri", f"kafka://{host}{parts.path}")
        draft.put("spec.sink.kafka.protocol", known.get("protocol") or source.config.get("sink", {}).get("protocol"))
    elif scheme in ("blackhole", "noop"):
        draft.put("spec.sink.blackhole", {})
    else:
        raise InvalidSpec("--sink-uri", f"a sink of kind {scheme!r}; allowed: {_SINK_URI}")
    if host != parts.netloc:
        draft.notes.append(f"sink URI: its user: make a Secret {source.name}-sink with the keys username, password")
    draft.notes += [f"sink URI: {_unknown(name, [*URI_KEYS, *PLACE_PARAMETERS, *SECRETS])}" for name in parameters]
    return known


def _storage(draft: _Draft, name: str, parts: SplitResult, parameters: dict[str, str]) -> None:
    """Takes what it knows out of `parameters`."""
    place = {key: parameters.pop(key) for key in PLACE_PARAMETERS if key in parameters and parts.scheme == "s3"}
    query = f"?{urlencode(place, safe=':/')}" if place else ""
    draft.put(f"{STORAGE}.uri", f"{STORES[parts.scheme]}://{parts.netloc.rpartition('@')[2]}{parts.path}{query}")
    secrets = [key for key in SECRETS if parameters.pop(key, None) is not None]
    if secrets:
        keys = ", ".join(SECRETS[key] for key in secrets)
        draft.put(f"{STORAGE}.credentials.secretRef.name", f"{name}-sink")
        draft.notes.append(f"sink URI: {', '.join(secrets)}: make a Secret {name}-sink with the keys {keys}")
    if "enable-tidb-extension" in parameters:
        draft.put(f"{CANAL}.enableTidbExtension", parameters.pop("enable-tidb-extension").lower() in ("true", "1"))


def _settings(draft: _Draft, keys: Mapping[str, object]) -> None:
    for key, value in keys.items():
        group = next((group for group in _groups(key) if group in WITHOUT), None)
        if key in SAME:
            _setting(draft, key, value)
        elif group:
            default, why = WITHOUT[group]
            if str(value) != str(default):
                draft.notes.append(f"{_shown(key, value)}: no equivalent; {why}")
        else:
            draft.notes.append(_unknown(key, [*SAME, *WITHOUT]))


def _setting(draft: _Draft, key: str, value: object) -> None:
    path = SAME[key]
    if path.startswith(STORAGE) and "storage" not in draft.resource["spec"]["sink"]:
        if key != "sink.protocol":
            draft.notes.append(f"{_shown(key, value)}: {LATER} for this kind of sink")
    elif path in _RENAMED and value not in _WORDS:
        draft.notes.append(f"{_shown(key, value)}: {LATER}")
    elif path in _RENAMED:
        draft.put(path, _WORDS[str(value)])
    elif key in MEMBERS:
        if tables := list(_tables(draft, key, value)):
            draft.put(path, tables)
    elif path.endswith(".ignoreTxnStartTs") and isinstance(value, list):
        draft.put(path, [str(ts) for ts in value])
    elif path.endswith(".fileSize") and str(value).isdecimal():
        draft.put(path, format_size(int(str(value))))
    else:
        draft.put(path, value)


def _tables(draft: _Draft, key: str, tables: object) -> Iterator[dict[str, object]]:
    """A list of tables under their members' names here. An empty member says nothing in TiCDC."""
    for number, table in enumerate(tables if isinstance(tables, list) else []):
        place, renamed = f"{key}[{number}]", {}
        for name, value in table.items():
            if name not in MEMBERS[key]:
                draft.notes.append(_unknown(f"{place}.{name}", [f"{place}.{member}" for member in MEMBERS[key]]))
            elif value:
                renamed[MEMBERS[key][name]] = value
                draft.notes += [f"{place}.{name}: {WIDER[name]}"] if name in WIDER else []
        yield renamed


def _unknown(key: str, known: list[str]) -> str:
    near = difflib.get_close_matches(key, known, n=1, cutoff=0.7)
    return f"unknown key {key}; " + (f"did you mean {near[0]}?" if near else "no equivalent")


def _shown(key: str, value: object) -> str:
    """The key with its value, unless that may hold a secret."""
    text = json.dumps(value, default=str, ensure_ascii=False)
    return key if "://" in text or _MAY_BE_SECRET.search(key) else f"{key} = {text}"


def _groups(key: str) -> Iterator[str]:
    """ "sink.kafka-config.a" -> itself, "sink.kafka-config", "sink"."""
    while key:
        yield key
        key = key.rpartition(".")[0]


def _flat(prefix: str, config: Mapping[str, Any]) -> Iterator[tuple[str, object]]:
    """Keys with their sections before them; a list, of tables too, is one value."""
    for name, value in config.items():
        if isinstance(value, dict):
            yield from _flat(f"{prefix}{name}.", value)
        else:
            yield f"{prefix}{name}", value
