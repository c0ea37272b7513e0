"""Converts a TiCDC changefeed's sink URI and configuration to a Changefeed (docs/running.md, From TiCDC).

Nothing is dropped silently: a setting without an equivalent that differs from TiCDC's default is named in a note. No
note and no resource contains a credential. Does no I/O.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import SplitResult, parse_qsl, urlencode, urlsplit

import yaml

from changefeed.errors import InvalidSpec
from changefeed.spec.field.quantity import format_size
from changefeed.spec.names import API_VERSION, KIND
from changefeed.spec.parse import parse
from changefeed.spec.problem import InvalidResource
from changefeed.ticdc.keys import (
    EXTENSION,
    FLAGS,
    KINDS,
    LOCATION_PARAMETERS,
    MEMBERS,
    OF_SINKS,
    PARAMETERS,
    PARTITIONS,
    PROTOCOLS,
    SAME,
    SAME_OF,
    SECRETS,
    STORE_SECRETS,
    STORES,
    WHO,
    WIDER,
    WITHOUT,
)

_SINK_URI = "s3://bucket/folder?protocol=csv, mysql://user@host:port or kafka://host:port/topic?protocol=canal-json"
_NO_URI = "no URI, or a password in it is not percent-encoded"
#: Values that are another word here.
_WORDS = {"low-latency": "LowLatency"} | {w.lower(): w for w in ("Throughput", "None", "Correctness", "Warn", "Error")}
_GO_BOOLS = {"1": True, "t": True, "true": True, "0": False, "f": False, "false": False}
_MAY_BE_SECRET = re.compile("user|passw|secret|token|key|credential|registry|(storage|uri)$", re.IGNORECASE)


@dataclass(frozen=True)
class TicdcSource:
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
    """`kind`: of the sink."""

    name: str
    resource: dict[str, Any]
    notes: list[str] = field(default_factory=list)
    kind: str = ""

    def put(self, path: str, value: object) -> None:
        *sections, name = path.split(".")
        section = self.resource
        for part in sections:
            section = section.setdefault(part, {})
        section[name] = value

    def name_secret(self, section: str, said: str, keys: Iterable[str]) -> None:
        """`section`: of the sink, that names it. `said`: by what it was in TiCDC."""
        secret = f"{self.name}-sink-tls" if section == "tls" else f"{self.name}-sink"
        self.put(f"spec.sink.{self.kind}.{section}.secretRef.name", secret)
        self.notes.append(f"{said}: make a Secret {secret} with the keys {', '.join(dict.fromkeys(keys))}")


def convert(source: TicdcSource) -> Converted:
    """The Changefeed, and what has no equivalent in it.

    Raises InvalidSpec for a sink URI whose scheme no Changefeed can have.
    """
    metadata = {"name": source.name, **({"namespace": source.namespace} if source.namespace else {})}
    draft = _Draft(source.name, {"apiVersion": API_VERSION, "kind": KIND, "metadata": metadata, "spec": {}})
    draft.put("spec.upstream.pdAddresses", list(source.pd) or ["http://pd:2379"])
    if not source.pd:
        draft.notes.append("spec.upstream.pdAddresses: write where PD of the upstream is (--pd)")
    for path, ts in (("spec.startTs", source.start_ts), ("spec.targetTs", source.target_ts)):
        if ts is not None:
            draft.put(path, ts)
    if source.start_ts is None:
        draft.notes.append("spec.startTs: without it, it starts now; give TiCDC's checkpoint to continue from there")
    keys = dict(_flat("", source.config)) | _sink(draft, source.sink_uri)
    _settings(draft, {key: value for key, value in keys.items() if value != "" or key.startswith("sink.csv.")})
    if draft.kind == "kafka":
        _told(draft, keys)
    try:
        parse(json.dumps(draft.resource))
    except InvalidResource as refused:
        draft.notes += [f"to fix: {problem.line}" for problem in refused.problems]
    return Converted(draft.resource, tuple(draft.notes))


def to_yaml(converted: Converted) -> str:
    """The resource, with the notes as comments before it."""
    head = ["# Made from a TiCDC changefeed by `changefeed import`."]
    head += ["# Not as it was, or to do:"] if converted.notes else []
    head += [f"# - {' '.join(note.split())}" for note in converted.notes]
    text = yaml.safe_dump(converted.resource, sort_keys=False, allow_unicode=True, width=120)
    return "\n".join([*head, text])


def _sink(draft: _Draft, uri: str) -> dict[str, object]:
    """Writes the sink's kind and location. Gives the keys of the configuration that the URI has, too."""
    try:
        parts = _split(uri)
    except ValueError:
        raise InvalidSpec("--sink-uri", f"{_NO_URI}; allowed: {_SINK_URI}") from None
    scheme = parts.scheme.removesuffix("+ssl")
    if scheme not in KINDS:
        raise InvalidSpec("--sink-uri", f"a sink of kind {scheme!r}; allowed: {_SINK_URI}")
    draft.kind = KINDS[scheme]
    parameters = dict(parse_qsl(parts.query))
    names = PARAMETERS[draft.kind]
    known = {names[name]: _typed(names[name], parameters.pop(name)) for name in [*parameters] if name in names}
    if draft.kind == "storage":
        draft.put("spec.sink.storage.uri", _location(parts, parameters))
        if secrets := [name for name in STORE_SECRETS if parameters.pop(name, None)]:
            keys = [STORE_SECRETS[name] for name in secrets]
            draft.name_secret("credentials", f"sink URI: {', '.join(secrets)}", keys)
        if parameters.pop("sas-token", None):
            draft.notes.append("sink URI: sas-token: no equivalent; use the account's key, or the pods' identity")
    elif draft.kind == "blackhole":
        draft.put("spec.sink.blackhole", {})
    else:
        path = parts.path if draft.kind == "kafka" else ""
        draft.put(f"spec.sink.{draft.kind}.uri", f"{draft.kind}://{_host(parts)}{path}")
    if _host(parts) != parts.netloc and draft.kind == "mysql":
        draft.name_secret("credentials", "sink URI: its user", ("username", "password"))
    elif _host(parts) != parts.netloc:
        draft.notes.append("sink URI: its user: no equivalent")
    known_here = [*names, *LOCATION_PARAMETERS.get(STORES.get(scheme, ""), {}), *STORE_SECRETS]
    draft.notes += [f"sink URI: {_unknown(name, known_here)}" for name in parameters]
    return known


def _split(uri: str) -> SplitResult:
    """Raises ValueError for what is no URI, and where a password may go on behind what looks like the host."""
    parts = urlsplit(uri)
    for host in _host(parts).split(","):
        _ = urlsplit(f"//{host}").port
    names = [pair.partition("=")[0] for pair in parts.query.split("&")]
    may_have_user = ":" in parts.netloc or parts.scheme not in STORES
    if "://" not in uri or (may_have_user and "@" in "".join([parts.path, parts.fragment, *names])):
        raise ValueError
    return parts


def _host(parts: SplitResult) -> str:
    return parts.netloc.rpartition("@")[2]


def _typed(key: str, text: str) -> object:
    """A parameter's value as the configuration would have it."""
    if key in FLAGS:
        return _GO_BOOLS.get(text.lower(), text)
    return int(text) if text.isdecimal() else text


def _location(parts: SplitResult, parameters: dict[str, str]) -> str:
    """Where an object store is. Takes what it knows out of `parameters`."""
    known = LOCATION_PARAMETERS.get(STORES.get(parts.scheme, ""), {})
    chosen = {ours: parameters.pop(key) for key, ours in known.items() if key in parameters}
    query = f"?{urlencode(chosen, safe=':/')}" if chosen else ""
    return f"{STORES.get(parts.scheme, parts.scheme)}://{_host(parts)}{parts.path}{query}"


def _settings(draft: _Draft, keys: dict[str, object]) -> None:
    for section, names in SECRETS.get(draft.kind, {}).items():
        if given := [key for key in names if keys.pop(key, None)]:
            draft.name_secret(section, ", ".join(given), [names[key] for key in given])
    fields = SAME | {key: f"spec.sink.{draft.kind}.{field}" for key, field in SAME_OF[draft.kind].items()}
    protocol = keys.get("sink.protocol")
    for key, value in keys.items():
        group = next((group for group in _groups(key) if group in WITHOUT), None)
        if key in fields and protocol in PROTOCOLS.get(key, (protocol,)):
            if (converted := _value(draft, key, fields[key], value)) is not None:
                draft.put(fields[key], converted)
        elif key in fields:
            if value:
                draft.notes.append(f"{_shown(key, value)}: no equivalent for protocol: {protocol}")
        elif group:
            default, why = WITHOUT[group]
            if str(value) != str(default):
                draft.notes.append(f"{_shown(key, value)}: no equivalent; {why}")
        elif key not in OF_SINKS:
            draft.notes.append(_unknown(key, [*SAME, *OF_SINKS, *WITHOUT]))
        elif value:
            draft.notes.append(f"{_shown(key, value)}: of another kind of sink")


def _told(draft: _Draft, keys: dict[str, object]) -> None:
    """What TiCDC sends beside rows, whatever its options, and a Changefeed if it is asked to."""
    protocol = keys.get("sink.protocol")
    if protocol == "canal-json" and not keys.get(EXTENSION):
        draft.put("spec.sink.kafka.canalJson.ddls", True)
    elif protocol == "debezium":
        draft.put("spec.sink.kafka.debezium", {"watermarks": True, "ddls": True})


def _value(draft: _Draft, key: str, path: str, value: object) -> object:
    """As the resource has it at `path`; None: there is nothing to write."""
    match path.rpartition(".")[2]:
        case "mode" | "level" | "onCorruption":
            return _WORDS.get(str(value), value)
        case "ignoreTxnStartTs" if isinstance(value, list):
            return [str(ts) for ts in value]
        case "fileSize" | "maxMessageBytes" if str(value).isdecimal():
            return format_size(int(str(value)))
        case "saslMechanism":
            return str(value).upper()
        case "schemaRegistry" | "claimCheckUri":
            return _uri(draft, key, str(value))
        case _ if key in MEMBERS and isinstance(value, list):
            return [_table(draft, key, number, table) for number, table in enumerate(value)] or None
    return value


def _uri(draft: _Draft, key: str, text: str) -> str | None:
    """Without credentials. Its value may hold some: no note shows it."""
    try:
        parts = _split(text)
    except ValueError:
        draft.notes.append(f"{key}: {_NO_URI}")
        return None
    parameters = dict(parse_qsl(parts.query))
    location = _location(parts, parameters)
    if left := [*(["its user"] if _host(parts) != parts.netloc else []), *parameters]:
        draft.notes.append(f"{key}: {', '.join(left)}: no equivalent; {WHO[key]}")
    return location


def _table(draft: _Draft, key: str, number: int, table: object) -> object:
    """One of a list, under its members' names here. An empty member says nothing in TiCDC."""
    if not isinstance(table, dict):
        return table
    path, names, renamed = f"{key}[{number}]", MEMBERS[key], {}
    for name, value in table.items():
        if name in names and value:
            renamed[names[name]] = value
            if name in WIDER and draft.kind != "kafka":
                draft.notes.append(f"{path}.{name}: {WIDER[name]}")
        elif f"{key}.{name}" in WITHOUT and value:
            draft.notes.append(f"{_shown(f'{path}.{name}', value)}: no equivalent; {WITHOUT[f'{key}.{name}'][1]}")
        elif name not in names and f"{key}.{name}" not in WITHOUT:
            draft.notes.append(_unknown(f"{path}.{name}", [f"{path}.{member}" for member in names]))
    if "partition" in renamed:
        word = str(renamed["partition"]).lower()
        renamed["partition"] = PARTITIONS.get(word, word)
    return renamed


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
