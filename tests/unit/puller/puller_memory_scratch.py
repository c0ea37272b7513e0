"""A scratch file without a disk."""

from __future__ import annotations

import pyarrow as pa
from changefeed.upstream.scratch import Block


class MemoryFile:
    def __init__(self) -> None:
        self.content = b""

    def append(self, content: pa.Buffer) -> Block:
        block = Block(len(self.content), content.size, b"")
        self.content += content.to_pybytes()
        return block

    def read(self, block: Block) -> pa.Buffer:
        assert block.end <= len(self.content), "what was given up is asked for"
        return pa.py_buffer(self.content[block.offset : block.end])

    def cut(self, size: int) -> None:
        self.content = self.content[:size]
