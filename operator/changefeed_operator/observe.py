"""What one pass of the operator saw: the shape that `decide` takes. Does no I/O.

Whoever fills it reads all of it before `decide` is called; when one read fails, the pass ends there and is tried again.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from changefeed_operator import api
from changefeed_operator.api import Json


@dataclass(frozen=True)
class Observed:
    """One changefeed and everything that bears its name.

    - `now`: Unix seconds; the only clock that `decide` knows.
    - `changefeed`: the live object; None only when the API server answered that there is none (404). An object that
      couldn't be read, or that the operator's selector leaves out, is not None: skip the pass. Its
      `metadata.managedFields` must keep the entry of `changefeed-driver` (its manager and time alone are read).
    - `children`: every object of `api.CHILD_KINDS` in the namespace with the label `changefeed.dev/name: <name>`,
      whole, with `kind` filled in (lists of the API server leave it out), pods of ended attempts included.

    What is read only while something is wrong, as `decision.evidence.pods` says, and may be missing:

    - `pod_events`: Kubernetes' events about the pods in question.
    - `driver_log`: the end of the driver's log.
    - `executor_ends`: executors that ended within the last minutes, as they were last seen; Spark deletes them at once.
    - `mode_before`: the event store's mode as the pass before saw it.
    - `refused`: what the API server refused the last pass, a sentence with the next step.
    """

    namespace: str
    name: str
    now: float
    changefeed: Json | None = None
    children: tuple[Json, ...] = ()
    namespace_terminating: bool = False
    pod_events: tuple[Json, ...] = ()
    driver_log: str = ""
    executor_ends: tuple[Json, ...] = ()
    refused: str = ""
    mode_before: str = ""

    def child(self, kind: api.Kind, name: str) -> Json | None:
        return self._by_kind_and_name.get((kind.kind, name))

    @property
    def application(self) -> Json | None:
        return self.child(api.APPLICATION, api.child_name(self.name))

    @property
    def driver(self) -> Json | None:
        """The driver pod, of whichever attempt: its name is constant, so there is one at most."""
        return self.child(api.POD, api.driver_pod_name(self.name))

    @property
    def executors(self) -> tuple[Json, ...]:
        return tuple(child for child in self.children if self._is_executor(child))

    @cached_property
    def _by_kind_and_name(self) -> dict[tuple[str, str], Json]:
        return {(api.kind_of(child), api.name_of(child)): child for child in self.children}

    @staticmethod
    def _is_executor(child: Json) -> bool:
        return api.kind_of(child) == api.POD.kind and api.label_of(child, api.ROLE_LABEL) == "executor"
