"""The main file of the SparkApplication: `changefeed run ...` in the driver's pod, as a person runs it on a laptop."""

from __future__ import annotations

import os
import sys
from types import TracebackType

from changefeed.cli.main import main
from changefeed.cli.termination import termination_log, write_termination


def say_crash(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """What no ChangefeedError names is a fault of ours; the traceback goes to the container's log."""
    write_termination(termination_log(os.environ), kind.__name__, str(error), "Report it, with the driver's log.")
    sys.__excepthook__(kind, error, trace)


if __name__ == "__main__":
    sys.excepthook = say_crash
    sys.exit(main())
