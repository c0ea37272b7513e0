"""Traces of a real TiKV as scripts of the transactional calls that were made: played into the dev cluster's stores.

A trace's timestamps are played as they are: the player raises the oracle to whatever a call names. Ids of regions and
peers are the dev cluster's own; what compares two answers leaves them out.
"""

from __future__ import annotations

import gzip
import hashlib
import json
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any, NamedTuple

import golden
from changefeed.wire import cdcpb_pb2 as cdcpb
from changefeed.wire import kvrpcpb_pb2 as kvrpcpb
from changefeed_devcluster.pd.oracle import Oracle
from changefeed_devcluster.pd.regions import Region, Regions
from changefeed_devcluster.store.calls import StoreCalls, message_class
from changefeed_devcluster.store.store import MvccStore
from changefeed_devcluster.store.txn import MAX_TS
from changefeed_devcluster.watermark.safe_ts import SafeTs
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

FOLDER = golden.CORPUS / "traces"
_ABOUT = ("mutations", "keys", "key", "primary_lock", "primary_key", "split_keys")
"""Arguments that say which region a call is for, in this order."""


def names() -> list[str]:
    """Return the names of all traces; none where there is no golden data."""
    return sorted(path.stem for path in FOLDER.glob("*.json"))


class Call(NamedTuple):
    """`name`: of the call, or what else was done to the cluster; `request` is what it was given."""

    ms: int
    name: str
    request: Any
    response: Mapping[str, Any]

    @property
    def is_of_a_client(self) -> bool:
        return isinstance(self.request, Mapping)


class Trace:
    """A recorded scenario: the JSON as it is, in `about`, and its calls."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.about: dict[str, Any] = json.loads((FOLDER / f"{name}.json").read_text())
        self.start, self.end = map(bytes.fromhex, self.about["range"])
        self.calls = [
            Call(each["ms"], each["call"], each["request"], each.get("response", {})) for each in self.about["calls"]
        ]

    def stream(self, number: int) -> list[cdcpb.ChangeDataEvent]:
        """The messages of a stream in the order of arrival."""
        path = FOLDER / self.about["streams"][number]["file"]
        data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        return [cdcpb.ChangeDataEvent.FromString(body) for body in _delimited(data)]

    @cached_property
    def values(self) -> dict[str, bytes]:
        """By SHA-256: the streams' values, for calls that tell no more of a long one."""
        found = (
            row.value
            for number in range(len(self.about["streams"]))
            for message in self.stream(number)
            for event in message.events
            for row in event.entries.entries
        )
        return {hashlib.sha256(value).hexdigest(): value for value in found}

    def message(self, kind: Any, fields: Mapping[str, Any]) -> Any:
        """A protobuf message of what JSON says of it."""
        made = kind()
        for name, value in fields.items():
            inner, _, last = name.rpartition(".")
            target = getattr(made, inner) if inner else made
            self._set(target, target.DESCRIPTOR.fields_by_name[last], value)
        return made

    def _set(self, target: Any, field: FieldDescriptor, value: Any) -> None:
        if field.is_repeated:
            getattr(target, field.name).extend(self._plain(field, each) for each in value)
        elif field.message_type is not None:
            getattr(target, field.name).CopyFrom(self._plain(field, value))
        else:
            setattr(target, field.name, self._plain(field, value))

    def _plain(self, field: FieldDescriptor, value: Any) -> Any:
        if field.message_type is not None:
            return self.message(getattr(kvrpcpb, field.message_type.name, None) or _foreign(field), value)
        if field.enum_type is not None:
            return field.enum_type.values_by_name[value].number
        if field.type == FieldDescriptor.TYPE_BYTES:
            return self.values[value["sha256"]] if isinstance(value, Mapping) else bytes.fromhex(value)
        return int(value) if isinstance(value, str) and field.type != FieldDescriptor.TYPE_STRING else value


class Player:
    """Plays calls of a trace into stores, which it gives a region of the trace's range."""

    def __init__(self, trace: Trace, store: MvccStore, regions: Regions, oracle: Oracle, safe_ts: SafeTs) -> None:
        self._trace = trace
        self._regions = regions
        self._oracle = oracle
        self._calls = {id_: StoreCalls(id_, store, regions, safe_ts) for id_ in regions.store_ids}
        for border in (trace.start, trace.end):
            regions.split(border)

    @property
    def region(self) -> Region:
        """Where the trace's range begins."""
        return self._regions.locate(self._trace.start)

    def play(self, call: Call) -> tuple[Message, Message]:
        """What the dev cluster answers, and what a real one did: to be compared as they are."""
        request = self._trace.message(message_class(call.name, "Request"), call.request)
        region = self._regions.locate(_position(request, self._trace.start))
        request.context.region_id = region.id
        request.context.region_epoch.CopyFrom(region.message.region_epoch)
        request.context.peer.CopyFrom(region.leader)
        self._oracle.raise_to(max(_timestamps(request), default=0))
        answer = self._calls[region.leader_store].answer(call.name, request)
        recorded = self._trace.message(message_class(call.name, "Response"), call.response)
        return _anonymous(answer), _anonymous(recorded)


def _delimited(data: bytes) -> Iterator[bytes]:
    at = 0
    while at < len(data):
        size = shift = 0
        while True:
            byte = data[at]
            at += 1
            size |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                break
        yield data[at : at + size]
        at += size


def _foreign(field: FieldDescriptor) -> Any:
    """The class of a message that another file defines."""
    return GetMessageClass(field.message_type)


def _position(request: Any, default: bytes) -> bytes:
    for name in _ABOUT:
        found = getattr(request, name, None)
        if found:
            first = found if isinstance(found, bytes) else found[0]
            return first if isinstance(first, bytes) else first.key
    return default


def _timestamps(request: Message) -> Iterator[int]:
    return (
        value
        for field, value in request.ListFields()
        if (field.name.endswith(("_ts", "_version")) or field.name == "version") and 0 < value < MAX_TS
    )


def _anonymous(answer: Any) -> Any:
    """The answer with regions that keep only their borders, and how far their versions are from the lowest one."""
    if not isinstance(answer, kvrpcpb.SplitRegionResponse):
        return answer
    lowest = min((region.region_epoch.version for region in answer.regions), default=0)
    for region in (answer.left, answer.right, *answer.regions):
        region.id = 0
        region.region_epoch.conf_ver = 0
        region.region_epoch.version -= lowest
        region.ClearField("peers")
    return answer
