"""A store in memory, as each process sees it: calls that fail, answers that are lost, writes that land late.

Every call is a place where the others go on and where the process can be killed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

from changefeed.errors import AlreadyExists, Conflict, NotFound, OutcomeUnknown, Transient, Unavailable
from changefeed.objectstore import FileRange, Object

if TYPE_CHECKING:
    from simulated_world import World

T = TypeVar("T")


class Killed(BaseException):
    """SIGKILL, inside a call: no code of the process may see it."""


@dataclass
class ObjectsInMemory:
    """The one store."""

    objects: dict[str, bytes] = field(default_factory=dict)
    etags: dict[str, int] = field(default_factory=dict)


class Steady:
    """The store as it is, for a reader to whom nothing happens."""

    uri = "memory://simulated"

    def __init__(self, store: ObjectsInMemory) -> None:
        self._store = store

    def get(self, path: str) -> Object:
        if path not in self._store.objects:
            raise NotFound(f"There is no {path}.")
        return Object(self._store.objects[path], str(self._store.etags.get(path, 0)))

    def list(self, prefix: str = "") -> list[tuple[str, int]]:
        objects = self._store.objects
        return sorted((path, len(body)) for path, body in objects.items() if path.startswith(prefix + "/"))


class View:
    """A process's client of the store; implements ObjectStore."""

    uri = "memory://simulated"

    def __init__(self, world: World, process: Process) -> None:
        self._world = world
        self._store = world.store
        self._steady = Steady(world.store)
        self._process = process

    def create(self, path: str, body: bytes | tuple[FileRange, ...]) -> None:
        assert isinstance(body, bytes)

        def put() -> None:
            if path in self._store.objects:
                raise AlreadyExists(f"{path} is taken.")
            self._store.objects[path] = body
            self._world.say(f"  {path} stands")
            self._world.oracles.on_create(path, body)

        self._write(path, put)

    def swap(self, path: str, body: bytes, etag: str | None) -> str:
        def put() -> str:
            version = self._store.etags.get(path, 0)
            if etag != (str(version) if version else None):
                raise Conflict(f"{path} has changed.")
            self._store.objects[path] = body
            self._store.etags[path] = version + 1
            self._world.say(f"  {path} says {body!r}")
            self._world.oracles.on_swap(path, body)
            return str(version + 1)

        return self._write(path, put)

    def get(self, path: str) -> Object:
        self._before(path)
        return self._steady.get(path)

    def chunks(self, path: str, size: int = 8 << 20) -> Iterator[bytes]:
        yield self.get(path).body

    def list(self, prefix: str = "") -> list[tuple[str, int]]:
        self._before(prefix)
        found = self._steady.list(prefix)
        self._process.wait()  # what was listed is old when it arrives
        return found

    def delete(self, path: str) -> None:
        self._before(path)
        self._store.objects.pop(path, None)

    def _before(self, path: str) -> None:
        self._process.wait()
        if self._world.happens("store"):
            raise Transient(f"{path} has to be tried again.")

    def _write(self, path: str, put: Callable[[], T]) -> T:
        self._before(path)
        unknown = OutcomeUnknown(f"It is unknown whether {path} was written.")
        fault = self._world.network.choice(("lost", "late", "unheard")) if self._world.happens("store") else ""
        if fault == "lost":
            raise unknown
        if fault == "late":
            self._world.lands_later(put)
            raise unknown
        answer = put()
        self._process.wait()
        if fault == "unheard":
            raise unknown
        return answer


class Process:
    """Something that can be killed; `busy` while it is inside a call."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.alive = True
        self.busy = False
        self.dwells = 0.2  # how often a call takes time
        self.takes_over = False
        self.store = View(world, self)

    def begin(self, every: float) -> None:
        """Take a step now and then, for as long as it lives."""
        if self.alive:
            self.go_on()
            self.world.time.after(every * (0.5 + self.world.network.random()), lambda: self.begin(every))

    def go_on(self) -> None:
        """One step; what ends the process is caught here, anything unexpected ends the run."""
        self.busy = True
        try:
            self.step()
        except Killed:
            self.alive = False
        except (Conflict, OutcomeUnknown, Transient, Unavailable) as error:
            self.end(f"gives up: {error}")
        finally:
            self.busy = False

    def step(self) -> None:
        raise NotImplementedError

    def end(self, why: str) -> None:
        if self.alive:
            self.world.say(f"{self.name} {why}")
            self.alive = False
            self.world.over(self)

    def wait(self) -> None:
        """For an answer: the others go on meanwhile, and it may be killed."""
        world = self.world
        if world.network.random() < self.dwells:
            seconds = world.network.random() * 0.2
            if world.happens("freeze") or (self.takes_over and world.happens("doze")):
                seconds = world.network.random() * world.network.choice((2.0, 4.0, 8.0))
                world.say(f"{self.name} is frozen for {seconds:.1f} s")
            world.let_others(seconds)
        if world.happens("crash"):
            self.end("is killed in a call")
        if not self.alive:
            raise Killed

    def sleep(self, seconds: float) -> None:
        self.world.let_others(seconds)
        self.wait()
