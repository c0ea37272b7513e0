"""A store in memory, as each process sees it: calls that fail, answers that are lost, writes that land late.

Every call is a place where the others go on and where the process can be killed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING, TypeVar

from changefeed.errors import AlreadyExists, Conflict, NotFound, OutcomeUnknown, Transient
from changefeed.objectstore import FileRange, Object

if TYPE_CHECKING:
    from simulated_world import World

T = TypeVar("T")


class Killed(BaseException):
    """SIGKILL, inside a call: no code of the process may see it."""


@dataclass(frozen=True)
class Faults:
    """How likely each is, at each place where it can happen."""

    store: float = 0.0  # a call fails, or its outcome is unknown
    crash: float = 0.0  # of a process in a call, and of a driver between two
    leave: float = 0.0  # a puller's stream breaks
    zombie: float = 0.0  # a second driver starts
    drain: float = 0.0
    executor: float = 0.0  # a task fails, a message is lost, doubled or another run's
    freeze: float = 0.0  # a call takes very long
    stall: float = 0.0  # the sink stands still for a while

    @classmethod
    def draw(cls, rng: Random) -> Faults:
        """Most seeds have few kinds of faults: many at once hide one another."""

        def some(most: float) -> float:
            return rng.random() * most if rng.random() < 0.5 else 0.0

        return cls(some(0.2), some(0.02), some(0.03), some(0.03), some(0.01), some(0.3), some(0.1), some(0.02))


@dataclass
class ObjectsInMemory:
    """The one store: what stands in it, and what may still land in it."""

    objects: dict[str, bytes] = field(default_factory=dict)
    etags: dict[str, int] = field(default_factory=dict)
    under_way: list[Callable[[], object]] = field(default_factory=list)


class View:
    """A process's client of the store; implements ObjectStore."""

    uri = "memory://simulated"

    def __init__(self, world: World, process: Process) -> None:
        self._world = world
        self._store = world.store
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
        if path not in self._store.objects:
            raise NotFound(f"There is no {path}.")
        return Object(self._store.objects[path], str(self._store.etags.get(path, 0)))

    def chunks(self, path: str, size: int = 8 << 20) -> Iterator[bytes]:
        yield self.get(path).body

    def list(self, prefix: str = "") -> list[tuple[str, int]]:
        self._before(prefix)
        found = sorted((path, len(body)) for path, body in self._store.objects.items() if path.startswith(prefix + "/"))
        self._world.meanwhile(self._process)  # what was listed is old when it arrives
        return found

    def delete(self, path: str) -> None:
        self._before(path)
        self._store.objects.pop(path, None)

    def _before(self, path: str) -> None:
        self._world.meanwhile(self._process)
        if self._world.happens(self._world.faults.store):
            raise Transient(f"{path} has to be tried again.")

    def _write(self, path: str, put: Callable[[], T]) -> T:
        self._before(path)
        unknown = OutcomeUnknown(f"Nobody knows whether {path} was written.")
        fault = self._world.rng.choice(("lost", "late", "unheard", "", "", ""))
        if not self._world.happens(self._world.faults.store * 2):
            fault = ""
        if fault == "lost":
            raise unknown
        if fault == "late":
            self._store.under_way.append(put)
            raise unknown
        answer = put()
        self._world.meanwhile(self._process)
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
        self.store = View(world, self)

    def go_on(self) -> None:
        """One step; what ends the process is caught here, anything unexpected ends the run."""
        self.busy = True
        try:
            self.step()
        except Killed:
            self.alive = False
        except (Conflict, OutcomeUnknown, Transient) as error:
            self.end(f"gives up: {error}")
        finally:
            self.busy = False

    def step(self) -> None:
        raise NotImplementedError

    def end(self, why: str) -> None:
        self.world.say(f"{self.name} {why}")
        self.alive = False
