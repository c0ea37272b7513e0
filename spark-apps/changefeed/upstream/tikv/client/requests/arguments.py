"""What the builders check their arguments with."""

from __future__ import annotations

from dataclasses import dataclass

from changefeed.errors import InvalidRequest
from changefeed.upstream.tikv.tidb.memcomparable import decode_bytes

_MOST = (1 << 63) - 1
_SHOWN = 64


@dataclass(frozen=True)
class Arguments:
    """Those of one `call`, as an error names it. Every method raises InvalidRequest."""

    call: str

    def need(self, holds: bool, name: str, value: object, must: str) -> None:
        """`must`: what `value` of the argument `name` has to be, after "must"."""
        if not holds:
            shown = value[:_SHOWN].hex() or "empty" if isinstance(value, bytes) else repr(value)
            raise InvalidRequest(
                f"A request {self.call} was not sent: {name} must {must}, not {shown}.",
                "This is a defect of the changefeed: report it with this message and the log.",
            )

    def numbers(self, **ids: int) -> None:
        """Ids, counts of an epoch: 0 means that nobody has set them."""
        for name, number in ids.items():
            self.need(0 < number <= _MOST, name, number, "be set")

    def between(self, name: str, number: int, least: int, most: int) -> None:
        self.need(least <= number <= most, name, number, f"be from {least} to {most}")

    def ts(self, name: str, ts: int, now: int) -> None:
        """A ts that PD has given out: not above `now`, which it gave out after that."""
        self.need(0 < ts <= now, name, ts, f"be a ts that PD has given out, at most {now}")

    def key(self, name: str, key: bytes) -> None:
        """A raw key."""
        self.need(bool(key), name, key, "be a key")

    def encoded(self, name: str, key: bytes) -> None:
        """A key in memcomparable form, alone."""
        try:
            whole = not decode_bytes(key)[1]
        except ValueError:
            whole = False
        self.need(whole, name, key, "be a key in memcomparable form")

    def range(self, start: bytes, end: bytes, open_end: bool = True) -> None:
        """[start, end); `open_end`: b"" is no end."""
        if not (open_end and not end):
            self.need(start < end, "end_key", end, f"be above start_key {start[:_SHOWN].hex()}")
