from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from changefeed.errors import (
    AlreadyExists,
    ChangefeedError,
    Conflict,
    InvalidSpec,
    NeedsHuman,
    NotFound,
    OutcomeUnknown,
    Unavailable,
)
from changefeed.objectstore import FileRange, ObjectStore
from changefeed.objectstore.local import LocalStore
from changefeed.objectstore.open import local_path, open_store, probe_store
from changefeed.objectstore.probe import probe


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path / "sink")


def everything_below(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*"))


def test_is_an_object_store(store: LocalStore) -> None:
    as_protocol: ObjectStore = store
    as_protocol.create("a/b.csv", b"1,2\n")
    assert as_protocol.get("a/b.csv").body == b"1,2\n"
    assert list(as_protocol.chunks("a/b.csv", size=3)) == [b"1,2", b"\n"]


def test_create_never_touches_an_existing_object(store: LocalStore) -> None:
    store.create("x", b"first")
    with pytest.raises(AlreadyExists, match="x exists already in file://"):
        store.create("x", b"second")
    assert store.get("x").body == b"first"


def test_one_of_twenty_creators_wins(store: LocalStore) -> None:
    start = threading.Barrier(20)

    def write(writer: int) -> bool:
        start.wait()
        try:
            store.create("deep/er/name", b"%d" % writer * 1000)
        except AlreadyExists:
            return False
        return True

    with ThreadPoolExecutor(20) as pool:
        wins = list(pool.map(write, range(20)))
    assert sum(wins) == 1
    assert store.get("deep/er/name").body == b"%d" % wins.index(True) * 1000


def test_ranges_of_spool_files_are_joined(store: LocalStore, tmp_path: Path) -> None:
    spool = tmp_path / "spool"
    spool.write_bytes(bytes(range(256)) * 10_000)
    store.create("o", (FileRange(spool, 5, 2_000_000), FileRange(spool, 0, 0), FileRange(spool, 1, 2)))
    whole = spool.read_bytes()
    assert store.get("o").body == whole[5:2_000_005] + whole[1:3]


@pytest.mark.parametrize("make", [True, False])
def test_a_short_or_missing_spool_file_creates_nothing(store: LocalStore, tmp_path: Path, make: bool) -> None:
    if make:
        (tmp_path / "spool").write_bytes(b"abc")
    with pytest.raises(NotFound, match="spool"):
        store.create("o", (FileRange(tmp_path / "spool", 1, 3),))
    assert store.list() == []


def test_a_whole_spool_file_becomes_the_object_without_a_copy(tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "root")
    spool = tmp_path / "spool"
    spool.write_bytes(b"0123456789")
    store.create("whole", (FileRange(spool, 0, 4), FileRange(spool, 4, 6)))
    store.create("part", (FileRange(spool, 0, 4),))
    store.create("turned", (FileRange(spool, 4, 6), FileRange(spool, 0, 4)))
    assert (tmp_path / "root" / "whole").samefile(spool)
    spool.unlink()
    assert [store.get(name).body for name in ("whole", "part", "turned")] == [b"0123456789", b"0123", b"4567890123"]


def test_rule_19_a_crash_between_file_and_link_leaves_nothing_in_the_tree(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Crash(BaseException):
        pass

    def crash(*_: object, **__: object) -> None:
        raise Crash

    store.create("a/kept", b"1")
    monkeypatch.setattr(os, "link", crash)
    monkeypatch.setattr(Path, "unlink", crash)  # a dead process cleans nothing
    with pytest.raises(Crash):
        store.create("a/torn", b"x" * 100)
    monkeypatch.undo()
    assert everything_below(store.root) == ["a", "a/kept"]
    left = list((store.root.parent / ".sink.changefeed-tmp").glob("*.tmp"))
    assert len(left) == 1

    store.hold()
    store.clean_leftovers()
    assert not left[0].exists()
    assert store.get("a/kept").body == b"1"
    with pytest.raises(Conflict):
        LocalStore(store.root).hold()  # the lock is no left-over


def test_rule_19_file_and_folders_are_synced_in_order(store: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    real_sync, real_link, events = os.fsync, os.link, []

    def sync(fd: int) -> None:
        events.append(f"sync {Path(os.readlink(f'/proc/self/fd/{fd}')).name}")
        real_sync(fd)

    def link(source: Path, target: Path) -> None:
        events.append(f"link {target.name}")
        real_link(source, target)

    monkeypatch.setattr(os, "fsync", sync)
    monkeypatch.setattr(os, "link", link)
    store.create("a/b/name", b"1")
    temporary = next(event for event in events if event.endswith(".tmp") and "changefeed" not in event)
    assert events.index(temporary) < events.index("link name")
    assert {"sync sink", "sync a"} <= set(events[: events.index("link name")])  # they hold the names a and b
    assert events[-1] == "sync b"

    events.clear()
    LocalStore(store.root).create("a/b/other", b"1")  # another process can't know that they are durable
    assert {"sync sink", "sync a"} <= set(events)


def test_swap_goes_by_etag(store: LocalStore) -> None:
    first = store.swap("meta", b"1", None)
    assert first == store.get("meta").etag
    second = store.swap("meta", b"2", first)
    assert (store.get("meta").body, store.get("meta").etag) == (b"2", second)
    for stale in (first, None):
        with pytest.raises(Conflict):
            store.swap("meta", b"3", stale)
    with pytest.raises(Conflict):
        store.swap("not there", b"3", first)
    assert store.get("meta").body == b"2"


def test_concurrent_swaps_lose_nothing(store: LocalStore) -> None:
    store.swap("n", b"0", None)

    def add_ten(_: int) -> None:
        done = 0
        while done < 10:
            seen = store.get("n")
            try:
                store.swap("n", b"%d" % (int(seen.body) + 1), seen.etag)
            except Conflict:
                continue
            done += 1

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(add_ten, range(4)))
    assert store.get("n").body == b"40"


def test_list_and_delete(store: LocalStore) -> None:
    assert store.list() == []
    for name in ("b/2", "b/1/x", "a", "bc"):
        store.create(name, name.encode())
    assert store.list() == [("a", 1), ("b/1/x", 5), ("b/2", 3), ("bc", 2)]
    assert store.list("b") == store.list("b/") == [("b/1/x", 5), ("b/2", 3)]
    assert store.list("none") == []
    store.delete("b/2")
    store.delete("b/2")
    store.delete("no/such/folder")
    assert store.list("b") == [("b/1/x", 5)]
    for missing in ("b/2", "b", "a/b"):
        with pytest.raises(NotFound, match="There is no"):
            store.get(missing)
        with pytest.raises(NotFound):
            list(store.chunks(missing))


def test_a_folder_removed_meanwhile_is_made_again(store: LocalStore) -> None:
    store.create("a/1", b"")
    store.delete("a/1")
    (store.root / "a").rmdir()
    store.create("a/2", b"")
    assert store.list() == [("a/2", 0)]


def test_the_folder_of_temporary_files_removed_meanwhile_is_made_again(store: LocalStore, tmp_path: Path) -> None:
    spool = tmp_path / "spool"
    spool.write_bytes(b"spooled")
    etag = store.swap("a/1", b"", None)
    for remake in (
        lambda: store.create("a/2", b""),
        lambda: store.create("a/3", (FileRange(spool, 0, 7),)),
        lambda: store.swap("a/1", b"new", etag),
    ):
        shutil.rmtree(store.root.parent / f".{store.root.name}.changefeed-tmp", ignore_errors=True)
        remake()
    assert store.list() == [("a/1", 3), ("a/2", 0), ("a/3", 7)]


@pytest.mark.parametrize("path", ["", "/etc/x", "a/../../x", "a//b", "a/.", "a/", "nul\0"])
def test_nothing_outside_the_store_can_be_named(store: LocalStore, path: str) -> None:
    with pytest.raises(NeedsHuman, match="does not name an object"):
        store.create(path, b"")


def test_hold_names_the_process_that_has_the_store(store: LocalStore) -> None:
    program = (
        "import sys; from pathlib import Path; from changefeed.objectstore.local import LocalStore\n"
        "LocalStore(Path(sys.argv[1])).hold(); print('held', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, str(store.root)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"held\n"
        with pytest.raises(Conflict, match=f"in use by process {other.pid}") as caught:
            store.hold()
        assert "stop that process" in caught.value.next_step
        other.kill()
        other.wait()
    store.hold()
    store.hold()


@pytest.mark.parametrize(
    ("code", "says"),
    [(errno.ENOSPC, "disk is full"), (errno.EACCES, "Permission is denied"), (errno.EROFS, "read-only")],
)
@pytest.mark.parametrize("call", ["write", "link", "mkdir", "open"])
def test_a_disk_that_refuses_is_unavailable(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch, code: int, says: str, call: str
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, call, refuse)
    with pytest.raises(Unavailable, match=str(store.root.parent)) as caught:
        probe_store(store) if call == "link" else store.create("a", b"1")
    assert says in caught.value.next_step
    monkeypatch.undo()
    assert store.list() == []


def test_a_root_below_a_file_is_found_by_the_probe(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(Unavailable, match="A part of the path is a file"):
        probe_store(LocalStore(tmp_path / "file" / "sink"))


def test_an_unsynced_folder_is_an_unknown_outcome(store: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    store.create("first", b"")

    def refuse(fd: int) -> None:
        if os.readlink(f"/proc/self/fd/{fd}") == str(store.root):
            raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(OutcomeUnknown, match="second"):
        store.create("second", b"")


def test_rule_28_the_probe_leaves_nothing_behind(store: LocalStore) -> None:
    probe_store(store)
    assert everything_below(store.root) == []


def test_rule_28_the_probe_finds_a_store_that_overwrites(store: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "link", lambda source, target: target.write_bytes(source.read_bytes()))
    with pytest.raises(NeedsHuman, match="20 of 20 writers were told that they alone had won"):
        probe_store(store)


def test_rule_28_a_store_that_nobody_gets_through_to_is_not_called_broken(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def create(*_: object) -> None:
        raise OutcomeUnknown("Nobody knows whether it was written: no answer in time.")

    monkeypatch.setattr(store, "create", create)
    with pytest.raises(Unavailable, match="no answer in time"):
        probe_store(store)


def test_rule_28_nor_is_one_that_takes_no_swap_for_now(store: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a store does that takes few writes of one object in a second."""
    swap = store.swap

    def first_only(path: str, body: bytes, etag: str | None) -> str:
        if etag is not None:
            raise OutcomeUnknown("Nobody knows whether it was written: it says 429 SlowDown.")
        return swap(path, body, etag)

    monkeypatch.setattr(store, "swap", first_only)
    with pytest.raises(Unavailable, match="429 SlowDown"):
        probe(store, "x/", rounds=1, swaps=True)
    assert store.list() == []


def test_uris(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert open_store("file:///a/b%20c/").uri == "file:///a/b%20c"
    assert open_store("file://./.demo/out").uri == (tmp_path / ".demo" / "out").as_uri()
    odd = LocalStore(tmp_path / "50% ü#?")
    assert local_path(odd.uri) == odd.root


@pytest.mark.parametrize(
    "uri", ["s3://key:secret@bucket/x", "secret", "file://secret/x", "file:///", "file:///a/../secret/.."]
)
def test_bad_uris_name_their_field_and_no_secret(uri: str) -> None:
    with pytest.raises(InvalidSpec) as caught:
        open_store(uri, "spec.sink.storage.uri")
    assert str(caught.value).startswith("spec.sink.storage.uri: ")
    assert ":secret" not in str(caught.value)
    assert caught.value.next_step
    assert isinstance(caught.value, ChangefeedError)
