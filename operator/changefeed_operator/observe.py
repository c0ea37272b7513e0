"""What one pass of the operator observed: the input of `decide`. Does no I/O.

Everything is read before `decide` is called; if a read fails, the pass ends and is retried.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from changefeed_operator import api
from changefeed_operator.api import Json


@dataclass(frozen=True)
class Observed:
    """One changefeed and everything labelled with its name.

    - `now`: Unix seconds; the only clock that `decide` uses.
    - `changefeed`: the live object; None only if the API server answered that it doesn't exist (404). If it could not
      be read, or the operator's selector excludes it, skip the pass instead. Its `metadata.managedFields` must keep the
      entry of `changefeed-driver` (only manager and time are read).
    - `children`: every object of `Settings.child_kinds` in the namespace with the label `changefeed.dev/name: <name>`,
      whole, with `kind` filled in (the API server's lists omit it), including pods of ended attempts.

    Read only while something is wrong (see `decision.evidence.pods`), and may be missing:

    - `pod_events`: Kubernetes events about the pods in question.
    - `driver_log`: the end of the driver's log.
    - `executor_ends`: executors that terminated in the last few minutes, as last seen; Spark deletes them at once.
    - `mode_before`: the event store's mode as the previous pass saw it.
    - `unmatched_before`: what the driver said of rules that match nothing, as the previous pass saw it.
    - `refused`: what the API server rejected in the last pass, a sentence with the next step.
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
    unmatched_before: str = ""

    def child(self, kind: api.Kind, name: str) -> Json | None:
        return self._by_kind_and_name.get((kind.kind, name))

    @property
    def application(self) -> Json | None:
        return self._by_kind_and_name.get((api.APPLICATION, api.child_name(self.name)))

    @property
    def driver(self) -> Json | None:
        """The driver pod, of whichever attempt: the name is constant, so there is at most one."""
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
