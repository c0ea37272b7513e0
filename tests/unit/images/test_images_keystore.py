"""Java's certificates without the time of their import. That Java can read them, images/java.sh sees to itself."""

from __future__ import annotations

import hashlib
import importlib.util
import struct
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).parents[3] / "images" / "undated_keystore.py"
_CERTIFICATE, _PRIVATE_KEY = 2, 1


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("undated_keystore", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _text(value: bytes) -> bytes:
    return struct.pack(">H", len(value)) + value


def _store(*entries: tuple[bytes, int, bytes], kind: int = _CERTIFICATE, more: bytes = b"") -> bytes:
    """A JKS of (alias, seconds, certificate), by the format's description (sun.security.provider.JavaKeyStore)."""
    body = struct.pack(">III", 0xFEEDFEED, 2, len(entries))
    for alias, seconds, certificate in entries:
        body += struct.pack(">I", kind) + _text(alias) + struct.pack(">Q", seconds * 1000)
        body += _text(b"X.509") + struct.pack(">I", len(certificate)) + certificate
    body += more
    return body + hashlib.sha1("changeit".encode("utf-16-be") + b"Mighty Aphrodite" + body).digest()


def test_the_same_certificates_imported_at_another_time_in_another_order_are_the_same_bytes(script: ModuleType) -> None:
    wanted = _store((b"debian:a.pem", 7, b"one"), (b"debian:b.pem", 7, b"another"))
    for given in (
        _store((b"debian:a.pem", 100, b"one"), (b"debian:b.pem", 101, b"another")),
        _store((b"debian:b.pem", 200, b"another"), (b"debian:a.pem", 300, b"one")),
    ):
        assert script.undated(given, 7) == wanted


@pytest.mark.parametrize(
    ("store", "words"),
    [
        (bytes(64), "no JKS keystore"),
        (_store((b"a", 1, b"one"))[:-1] + b"x", "no JKS keystore"),
        (_store((b"a", 1, b"one"), kind=_PRIVATE_KEY), "an entry is no certificate"),
        (_store((b"a", 1, b"one"), more=b"?"), "more behind the last entry"),
    ],
)
def test_anything_else_is_refused(script: ModuleType, store: bytes, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        script.undated(store, 0)
