"""Messages as Arrow columns, with no more than the fields that are wanted.

ptars makes a column of each field of a type, and each costs in a message of one row as much as in one of thousands: 21
of the 22 ms of a ScanResponse.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import ptars
from google.protobuf.descriptor import FileDescriptor
from google.protobuf.descriptor_pb2 import DescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool

#: By message: its fields. A message with none of them tells whether it is there.
Fields = Mapping[str, Collection[str]]


class MessageColumns:
    """Columns of a `file`'s message that has the `name`; other messages are of this file, or of one it imports."""

    def __init__(self, file: FileDescriptor, name: str, fields: Fields) -> None:
        needed = [thinned for each in (*file.dependencies, file) if (thinned := _file(each, fields)).message_type]
        needed[-1].dependency.extend(imported.name for imported in needed[:-1])
        descriptors = DescriptorPool()
        for each in needed:
            descriptors.Add(each)
        found = [descriptors.FindFileByName(each.name) for each in needed]
        self._pool = ptars.HandlerPool(found)  # goes with its handlers
        self._handler: Any = self._pool.get_for_message(found[-1].message_types_by_name[name])

    def of(self, messages: list[bytes]) -> Any:
        """A record batch, a row a message. Raises ValueError for what is no such message."""
        return self._handler.list_to_record_batch(messages)


def _file(file: FileDescriptor, fields: Fields) -> FileDescriptorProto:
    whole = FileDescriptorProto()
    file.CopyToProto(whole)
    wanted = [_thinned(message, fields) for message in whole.message_type if message.name in fields]
    return FileDescriptorProto(name=whole.name, package=whole.package, syntax=whole.syntax, message_type=wanted)


def _thinned(message: DescriptorProto, fields: Fields) -> DescriptorProto:
    nested = [_thinned(inner, fields) for inner in message.nested_type if inner.name in fields]
    wanted = [field for field in message.field if field.name in fields[message.name]]
    choices, enums = message.oneof_decl, message.enum_type
    return DescriptorProto(name=message.name, field=wanted, nested_type=nested, enum_type=enums, oneof_decl=choices)
