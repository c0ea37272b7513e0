"""Which registrations are known to have seen complete history (docs/design/rules.md, Rule 14).

TiKV scans below the GC safepoint without an error, silently omitting the rows that GC has removed. So what a
registration has resolved counts only after a read of the safepoint that started after its INITIALIZED and shows it at
or below the registration's own start. One read serves all waiting registrations.

Pure; a registration is an Ask object, used once.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from changefeed.upstream.tikv.feed.store_stream import Ask


@dataclass
class GcVerdict:
    """`advances`: what the confirmed ones have resolved meanwhile; `lost`: those whose start GC has passed."""

    advances: list[tuple[Ask, int]] = field(default_factory=list)
    lost: list[Ask] = field(default_factory=list)


class HeldHistory:
    def __init__(self) -> None:
        self._waiting: dict[Ask, int] = {}  # -> resolved-ts, 0 for none yet

    def initialized(self, ask: Ask) -> None:
        """Its scan is complete: whether it was whole is to be asked."""
        self._waiting[ask] = 0

    def counts(self, ask: Ask, ts: int) -> bool:
        """Whether a resolved-ts of the registration may be believed; else it is kept until the verdict."""
        if ask not in self._waiting:
            return True
        self._waiting[ask] = max(self._waiting[ask], ts)
        return False

    def over(self, ask: Ask) -> None:
        """The registration has ended."""
        self._waiting.pop(ask, None)

    def released(self, sub_id: int) -> None:
        """All registrations of the subscription have ended."""
        self._waiting = {ask: ts for ask, ts in self._waiting.items() if ask.sub_id != sub_id}

    def waiting(self) -> list[Ask]:
        """Those that a read of the safepoint which begins now can confirm."""
        return list(self._waiting)

    def judge(self, asked: list[Ask], safepoint: int) -> GcVerdict:
        """`safepoint` was read after `asked` was taken from `waiting`."""
        verdict = GcVerdict()
        for ask in asked:
            ts = self._waiting.pop(ask, None)
            if ts is None:
                continue
            if safepoint > ask.checkpoint_ts:
                verdict.lost.append(ask)
            elif ts:
                verdict.advances.append((ask, ts))
        return verdict
