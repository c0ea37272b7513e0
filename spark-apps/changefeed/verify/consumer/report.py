"""What a consumer's replay found, and what it had to look up in the upstream."""

from __future__ import annotations

from changefeed.reading.rows.lines import LineShape, show_values
from changefeed.verify.consumer.rows import RowDifferences
from changefeed.verify.result import Result


class ConsumerReport:
    """Into the verdict; what was taken from the upstream becomes one note."""

    def __init__(self, result: Result) -> None:
        self._result = result
        self._taken: list[str] = []
        self._paths: list[str] = [""]

    def problem(self, what: str) -> None:
        self._result.problem(what)

    def note(self, what: str) -> None:
        self._result.note(what)

    def took(self, what: str) -> None:
        """From the upstream, because no file says it."""
        self._taken.append(what)

    def end(self) -> None:
        if self._taken:
            self._result.note(
                "A consumer can't follow these from the files alone; they were taken from the upstream: "
                f"{'; '.join(self._taken)}."
            )

    # -- indexes

    def begin_file(self, path: str) -> int:
        """The index (rows.py) before the file's first row."""
        self._paths.append(path)
        return (len(self._paths) - 1) << 32

    def where(self, row_index: int) -> str:
        if not row_index:
            return "as the upstream once had it"
        return f"by {self._paths[row_index >> 32]}, row {row_index & 0xFFFFFFFF}"

    # -- differences

    def rows_differ(self, table: str, shape: LineShape, found: RowDifferences, when: str) -> None:
        """`when`: up to which moment the files were replayed."""
        result = self._result
        result.consumed_missing += found.missing
        result.consumed_extra += found.extra
        result.consumed_different += found.different
        have = (
            "no such row" if found.have is None else f"{show_values(shape, found.have)} ({self.where(found.row_index)})"
        )
        want = "no such row" if found.want is None else show_values(shape, found.want)
        result.problem(
            f"A consumer's {table} {when} has {have}; the upstream has {want}. In all {found.missing} rows are "
            f"missing, {found.extra} are extra and {found.different} differ."
        )
