"""Reads the Changefeed from a file; in a pod, only the one that the operator accepted."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from changefeed.errors import ForeignConfig, InvalidSpec

if TYPE_CHECKING:
    from changefeed.spec.model import Changefeed

#: The digest of the file that a pod of the operator's is to read. Not an argument: older images would refuse that.
DIGEST_VARIABLE = "CHANGEFEED_CONFIG_DIGEST"


def read(file: Path) -> Changefeed:
    """Raises InvalidSpec for what is no Changefeed."""
    return _parsed(file, _content(file))


def read_accepted(file: Path) -> Changefeed:
    """Read as `read` does; raises ForeignConfig when the environment tells another digest than the file has."""
    from changefeed.spec.parse import digest

    content = _content(file)
    told = os.environ.get(DIGEST_VARIABLE, "")
    if told and digest(content) != told:
        raise ForeignConfig(
            f"{file} has the digest {digest(content)}; the operator accepted {told}.",
            "Someone replaced its ConfigMap. The operator restores it and restarts the driver; find out who did it.",
        )
    return _parsed(file, content)


def _content(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as e:
        raise InvalidSpec("--file", f"can't read {file}: {e.strerror}", "Give the path of a Changefeed's YAML.") from e


def _parsed(file: Path, content: bytes) -> Changefeed:
    from changefeed.spec.parse import parse

    try:
        return parse(content.decode())
    except UnicodeDecodeError as e:
        raise InvalidSpec("--file", f"{file} is not UTF-8 text", "Give the path of a Changefeed's YAML.") from e
