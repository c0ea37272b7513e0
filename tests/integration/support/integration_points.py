"""Names for the moments at which a process can die: what is about to be done to an object store, or has just been done.

The product has no hooks for it. Its store is wrapped, in a process that a test has forked, and each call passes points:
before it, when the temporary file is written, when the name stands but its folder is not yet synced, and after it.
"""

from __future__ import annotations

import json
import os
import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import wraps
from pathlib import Path
from typing import Any

from changefeed.errors import AlreadyExists
from changefeed.eventstore.files import LocalSegments
from changefeed.eventstore.run_folder import RunFolder
from changefeed.log.log import Log
from changefeed.log.state import State
from changefeed.objectstore.local import LocalStore
from changefeed.objectstore.probe import PROBE
from changefeed.owner.owner import Owner
from changefeed.owner.reporting.status_writer import Applied
from changefeed.owner.serving.service import OwnerService
from changefeed.sink.storage import event_sink
from changefeed.sink.storage.layout import CLAIM, METADATA, index_of, is_schema_file, parse_index_path
from changefeed.upstream.tikv.client.safepoint import Safepoint
from integration_processes import Say

_RECORDS = {
    "start": "start record",
    "epoch": "epoch record",
    "plan": "plan",
    "ddl": "ddl record",
    "closed": "closed record",
}


class Points:
    """Counts passages. At passage `at` of `point` the process kills itself ("kill") or stops ("stop")."""

    def __init__(self, say: Say, point: str | None = None, at: int = 1, then: str = "kill") -> None:
        self.passed: Counter[str] = Counter()
        self._say = say
        self._point = point
        self._at = at
        self._signal = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}[then]
        self._lock = threading.Lock()
        self.swapping = threading.RLock()
        self._doing = threading.local()

    def passing(self, name: str) -> None:
        with self._lock:
            self.passed[name] += 1
            is_the_end = name == self._point and self.passed[name] == self._at
        if is_the_end:
            with self.swapping:  # who stops while another of its threads has a lock keeps all others out
                self._say(reached=name)
                # To this thread, which then does not come further; by SIGSTOP to another it would, for a while.
                signal.pthread_kill(threading.get_ident(), self._signal)

    @contextmanager
    def around(self, name: str) -> Iterator[None]:
        """Before it and, if it succeeds, after it; between them, what `inside` names."""
        self.passing(f"{name}: before")
        before, self._doing.name = getattr(self._doing, "name", None), name
        try:
            yield
        finally:
            self._doing.name = before
        self.passing(f"{name}: done")

    @contextmanager
    def creating(self, more: str) -> Iterator[None]:
        """What is created by this thread is named with it."""
        self._doing.more = more
        try:
            yield
        finally:
            self._doing.more = ""

    @property
    def more(self) -> str:
        return getattr(self._doing, "more", "")

    def inside(self, step: str) -> None:
        """A step of the thread's innermost `around`, if there is one."""
        if name := getattr(self._doing, "name", None):
            self.passing(f"{name}: {step}")


def install(points: Points) -> None:
    """From now on this process passes points."""
    _wrap_stores(points)
    _wrap_disk(points)
    _wrap_segments(points)
    _wrap_log(points)
    _wrap_calls(points)


def kind_of(path: str, body: bytes | None) -> str:
    """What an object of the sink or the log is. `body`: of a record."""
    name = path.rpartition("/")[2]
    if path.startswith("log/"):
        if name.startswith("snapshot"):
            return "snapshot"
        record = json.loads(body or b"{}")
        if record.get("kind") == "commit":
            return "commit record" if record["files"] else "checkpoint record"
        return _RECORDS.get(record.get("kind"), "record")
    if name.startswith(PROBE):
        return "probe"
    named = {METADATA: "metadata", CLAIM: "claim"}.get(path)
    if named is None and is_schema_file(path):
        named = "schema file"
    if named is None and parse_index_path(path):
        named = "index"
    if named is None and index_of(name) is not None:
        named = "data file"
    if named is None and name.endswith(".parquet"):  # of a table
        named = "file of deletes" if name.endswith("-deletes.parquet") else "file of rows"
    assert named, f"nobody knows what {path} is"
    return named


def _wrap_stores(points: Points) -> None:
    create, swap, delete = LocalStore.create, LocalStore.swap, LocalStore.delete

    def create_(self: LocalStore, path: str, body: Any) -> None:
        name = f"create {kind_of(path, body if isinstance(body, bytes) else None)}{points.more}"
        try:
            with points.around(name):
                create(self, path, body)
        except AlreadyExists:
            points.passing(f"{name}: found it there")
            raise

    def swap_(self: LocalStore, path: str, body: bytes, etag: str | None) -> str:
        if etag is None:
            return swap(self, path, body, etag)  # which creates it
        with points.around(f"replace {kind_of(path, body)}"), points.swapping:
            return swap(self, path, body, etag)

    def delete_(self: LocalStore, path: str) -> None:
        body = None
        with suppress(FileNotFoundError):  # another driver may delete it at any time
            body = (self.root / path).read_bytes()
        with points.around(f"delete {kind_of(path, body)}"):
            delete(self, path)

    LocalStore.create, LocalStore.swap, LocalStore.delete = create_, swap_, delete_  # type: ignore[method-assign]


def _wrap_disk(points: Points) -> None:
    link, replace, unlink = os.link, os.replace, os.unlink

    def stepping(call: Callable[..., None], before: str, after: str) -> Callable[..., None]:
        @wraps(call)
        def wrapped(*arguments: Any, **options: Any) -> None:
            if before:
                points.inside(before)
            call(*arguments, **options)
            points.inside(after)

        return wrapped

    def unlink_(path: Any, **options: Any) -> None:
        unlink(path, **options)
        if not str(path).endswith(".tmp"):  # of what is published, its name is what counts
            points.inside("gone")

    os.link = stepping(link, "written", "linked")
    os.replace = stepping(replace, "written", "replaced")
    os.unlink = unlink_


def _wrap_segments(points: Points) -> None:
    create, delete, delete_run_folder = LocalSegments.create, LocalSegments.delete, LocalSegments.delete_run_folder

    def create_(self: LocalSegments, path: str, fill: Callable[[Any], None]) -> int:
        def filled(file: Any) -> None:
            points.inside("empty")
            fill(file)

        with points.around("create segment"):
            return create(self, path, filled)

    def delete_(self: LocalSegments, path: str) -> None:
        with points.around("delete segment"):
            delete(self, path)

    def delete_run_folder_(self: LocalSegments, name: str) -> bool:
        with points.around("delete a lower epoch's folder"):
            return delete_run_folder(self, name)

    LocalSegments.create, LocalSegments.delete = create_, delete_  # type: ignore[method-assign]
    LocalSegments.delete_run_folder = delete_run_folder_  # type: ignore[method-assign]


def _wrap_log(points: Points) -> None:
    """What is recorded while files are open, and stay so."""
    append, fold = Log.append, Log.fold

    def append_(self: Log, record: Any) -> None:
        files = getattr(record, "files", ())
        stay_open = len(files) < sum(1 for _ in self.state.open_entries())
        with points.creating(" of some open files" if files and stay_open else ""):
            append(self, record)

    def fold_(self: Log, state: State) -> None:
        with points.creating(" with files open" if state.plans else ""):
            fold(self, state)

    Log.append, Log.fold = append_, fold_  # type: ignore[method-assign]


def _wrap_calls(points: Points) -> None:
    """What is no object: the hold at PD, what tasks and the owner do and say, what is cleared at the start and end."""
    hold = Safepoint.hold

    async def hold_(self: Safepoint, ts: int) -> int:
        with points.around("hold the upstream's history"):
            return await hold(self, ts)

    Safepoint.hold = hold_  # type: ignore[method-assign]
    for cls, method, name in (
        (LocalStore, "hold", "take the store's lock"),
        (LocalStore, "clean_leftovers", "clean left-overs"),
        (RunFolder, "clear_spool", "clear the spool"),
        (OwnerService, "order", "hand files to a pipeline task"),
        (event_sink, "encode_entry", "encode a file"),
        (Owner, "file_done", "hear that a file is put"),
        (Owner, "task_left", "lose a pipeline task"),
    ):
        wrap(points, cls, method, name)


def wrap(points: Points, where: Any, method: str, name: str) -> None:
    """A method of a class, or what a module calls."""
    real = getattr(where, method)

    @wraps(real)
    def wrapped(*arguments: Any) -> Any:
        with points.around(name):
            return real(*arguments)

    setattr(where, method, wrapped)


class StatusFile:
    """Stands in for the API server: the status is a file, and writing it passes points."""

    def __init__(self, path: Path, points: Points) -> None:
        self._path = path
        self._points = points

    async def apply(self, status: Any) -> Applied:
        with self._points.around("write status"), self._path.open("a") as file:
            file.write(json.dumps(status) + "\n")
        return Applied()
