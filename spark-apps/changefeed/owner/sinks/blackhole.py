"""The blackhole has nothing to open and nothing to lose."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from changefeed.log.state import State
from changefeed.objectstore.patience import Patience
from changefeed.owner.sinks.driven import Taken, Versions
from changefeed.sink.blackhole import BlackholeDdlSink, BlackholeJob
from changefeed.sink.contract import Outputs

_ENTRY_BYTES = 64 << 20


class DrivenBlackhole:
    """Implements DrivenSink."""

    uri = "blackhole://"
    in_order = True
    may_leave_out = False
    outputs = Outputs()
    fingerprint = "blackhole"
    file_size = _ENTRY_BYTES

    def open(self) -> None:
        pass

    def check_free(self, state: State, identity: str, state_uri: str) -> None:
        pass

    def check_rewind(self, state: State, state_uri: str) -> None:
        pass

    def check_newest(self, taken: Taken) -> None:
        pass

    def settle_in(self, taken: Taken, tables: Versions) -> None:
        pass

    def job(self) -> BlackholeJob:
        return BlackholeJob()

    def ddl_sink(self, taken: Taken, poll_fence: Callable[[], object], patience: Patience) -> BlackholeDdlSink:
        return BlackholeDdlSink()

    def expired(self, before: str) -> Iterator[Callable[[], None]]:
        return iter(())

    def release(self) -> None:
        pass
