"""One file's bytes until they are put: few in memory, many on the disk, and always those that were encoded."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from io import FileIO
from pathlib import Path

import pyarrow as pa
import pytest
from changefeed.errors import Transient, Unavailable
from changefeed.objectstore import FileRange
from changefeed.objectstore.digest import Digest
from changefeed.objectstore.patience import Patience
from changefeed.sink import spool as module
from changefeed.sink.spool import Spool

LIMIT = 10


@pytest.fixture(autouse=True)
def _small_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "IN_MEMORY_BYTES", LIMIT)


def spooled(file: Path, chunks: Sequence[bytes], patience: Patience | None = None) -> Spool:
    made = Spool(file, patience)
    for chunk in chunks:
        made.append(pa.py_buffer(chunk))
    return made


@pytest.mark.parametrize("chunks", [[], [b"0123456789"], [b"01234", b"", b"56789"]])
def test_few_bytes_stay_in_memory(tmp_path: Path, chunks: list[bytes]) -> None:
    spool = spooled(tmp_path / "spool" / "9-3", chunks)
    content = b"".join(chunks)
    assert spool.body() == content
    assert (spool.length, spool.hash) == (len(content), Digest(content).hexdigest())
    spool.discard()
    assert list(tmp_path.iterdir()) == [], "not even the folder is made"


@pytest.mark.parametrize("chunks", [[b"0123456789a"], [b"01234", b"56789", b"a"], [b"0" * 11, b"", b"more"]])
def test_many_bytes_are_one_file(tmp_path: Path, chunks: list[bytes]) -> None:
    file = tmp_path / "spool" / "9-3"
    spool = spooled(file, chunks)
    content = b"".join(chunks)
    assert spool.body() == (FileRange(file, 0, len(content)),)
    assert file.read_bytes() == content
    assert (spool.length, spool.hash) == (len(content), Digest(content).hexdigest())
    assert list(file.parent.iterdir()) == [file]
    spool.discard()
    assert list(file.parent.iterdir()) == []


def test_nothing_is_left_of_one_that_is_given_up(tmp_path: Path) -> None:
    file = tmp_path / "9-3"
    spool = spooled(file, [b"0123456789", b"a"])
    assert file.exists()
    spool.discard()
    assert not file.exists()


def test_anothers_file_is_neither_changed_nor_removed(tmp_path: Path) -> None:
    file = tmp_path / "9-3"
    file.write_bytes(b"another's")
    spool = Spool(file, Patience(0.0))
    with pytest.raises(Unavailable, match="File exists"):
        spool.append(pa.py_buffer(b"0123456789a"))
    spool.discard()
    assert file.read_bytes() == b"another's"


@pytest.mark.parametrize("found", [b"0123456789X", b"0123456789", b"0123456789ab", b"", None])
def test_rule_3_bytes_that_have_changed_on_disk_are_not_put(tmp_path: Path, found: bytes | None) -> None:
    file = tmp_path / "9-3"
    spool = spooled(file, [b"0123456789", b"a"])
    if found is None:
        file.unlink()
    else:
        file.write_bytes(found)
    with pytest.raises(Transient, match=r"9-3 .*; its task must run again"):
        spool.body()
    spool.discard()
    assert list(tmp_path.iterdir()) == []


def test_rule_3_all_of_a_file_is_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is read in blocks: the last byte counts as the first one does."""
    monkeypatch.setattr(module, "READ_BYTES", 4)
    file = tmp_path / "9-3"
    for changed in range(11):
        spool = spooled(file, [b"0123456789a"])
        assert isinstance(spool.body(), tuple)
        with file.open("r+b") as held:
            held.seek(changed)
            held.write(b"X")
        with pytest.raises(Transient, match="has changed"):
            spool.body()
        spool.discard()


class FullDisk(FileIO):
    """Takes three bytes a write, and each time nothing at all before."""

    refusals = 0

    def write(self, data: memoryview) -> int:  # type: ignore[override]
        type(self).refusals += 1
        if self.refusals % 2:
            raise OSError(errno.ENOSPC, "No space left on device")
        return super().write(data[:3])


def test_a_full_disk_is_waited_for_and_told_and_no_byte_is_written_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    monkeypatch.setattr(FullDisk, "refusals", 0)
    monkeypatch.setattr(Path, "open", lambda file, mode, **_: FullDisk(file, mode.rstrip("b")))
    patience = Patience(sleep=lambda _: None, failed=lambda error: told.append(error.message))
    spool = spooled(tmp_path / "9-3", [b"01234", b"56789a", b"bcd"], patience)
    monkeypatch.undo()
    assert (tmp_path / "9-3").read_bytes() == b"0123456789abcd"
    assert isinstance(spool.body(), tuple)
    assert set(told) == {f"Cannot write the spool file {tmp_path / '9-3'}: No space left on device."}
    assert len(told) == 5  # of 2, 2 and 1 pieces
    spool.discard()


def test_a_disk_that_stays_full_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "IN_MEMORY_BYTES", 0)
    blocked = tmp_path / "file"
    blocked.write_bytes(b"")
    waited: list[float] = []
    spool = Spool(blocked / "9-3", Patience(1.0, waited.append))
    with pytest.raises(Unavailable, match=r"9-3 has failed for 1 s\. Cannot write the spool file .*9-3: File exists"):
        spool.append(pa.py_buffer(b"a"))
    assert sum(waited) >= 1.0
    spool.discard()
