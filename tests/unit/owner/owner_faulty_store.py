"""An object store in memory whose every call is a step that a test can hold, fail or crash at."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from changefeed.errors import AlreadyExists, NotFound, OutcomeUnknown, Transient
from changefeed.objectstore import FileRange, Object

Fault = str  # "", "transient", "unknown", "unknown-written"


class MemoryStore:
    """`objects` is what stands in the store; several stores that share it are several drivers' views of one store.

    `before(call, path)` runs before each call takes effect and names the fault to inject.
    """

    uri = "memory://test"

    def __init__(
        self, objects: dict[str, bytes] | None = None, before: Callable[[str, str], Fault] = lambda call, path: ""
    ) -> None:
        self.objects = {} if objects is None else objects
        self.before = before
        self.deleted: list[str] = []

    def create(self, path: str, body: bytes | tuple[FileRange, ...]) -> None:
        assert isinstance(body, bytes)
        fault = self._step("create", path)
        if fault == "unknown":
            raise OutcomeUnknown(f"It is unknown whether {path} was written.")
        if path in self.objects:
            raise AlreadyExists(f"{path} is taken.")
        self.objects[path] = body
        if fault == "unknown-written":
            raise OutcomeUnknown(f"It is unknown whether {path} was written.")

    def get(self, path: str) -> Object:
        self._step("get", path)
        if path not in self.objects:
            raise NotFound(f"There is no {path}.")
        return Object(self.objects[path], "")

    def list(self, prefix: str = "") -> list[tuple[str, int]]:
        self._step("list", prefix)
        return sorted((path, len(body)) for path, body in self.objects.items() if path.startswith(f"{prefix}/"))

    def delete(self, path: str) -> None:
        self._step("delete", path)
        self.objects.pop(path, None)
        self.deleted.append(path)

    def chunks(self, path: str, size: int = 8 << 20) -> Iterator[bytes]:
        raise NotImplementedError

    def swap(self, path: str, body: bytes, etag: str | None) -> str:
        raise NotImplementedError

    def _step(self, call: str, path: str) -> Fault:
        fault = self.before(call, path)
        if fault == "transient":
            raise Transient(f"{call} {path} has to be tried again.")
        return fault
