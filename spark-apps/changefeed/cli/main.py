"""The command `changefeed`.

Thin: it parses arguments, calls what does the work, prints the result and chooses the exit code. Heavy libraries are
imported inside the commands that need them, so that `--help` and `validate` stay fast.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib.metadata import version

from cyclopts import App, CycloptsError

from changefeed.cli.cluster.resources import resources
from changefeed.cli.gc import gc
from changefeed.cli.lifecycle.adopt import adopt
from changefeed.cli.lifecycle.run import run
from changefeed.cli.lifecycle.undriven import close, hold
from changefeed.cli.lifecycle.validate import validate
from changefeed.cli.output import write_error, write_failure
from changefeed.cli.sink.flashback import flashback
from changefeed.cli.sink.restore import restore
from changefeed.cli.sink.tail import tail
from changefeed.cli.sink.verify import verify
from changefeed.cli.termination import termination_log, write_termination
from changefeed.cli.ticdc import import_ticdc
from changefeed.cli.tso import tso
from changefeed.cli.ui import ui
from changefeed.errors import ChangefeedError, Fenced

_BAD_INPUT = 2
_INTERRUPTED = 130
_POD_VERBS = frozenset({"run", "hold", "close"})  # the main ones of a container; others are run beside it

app = App(
    name="changefeed",
    help="Stream row changes from a TiKV/TiDB cluster or a PostgreSQL database to files, tables and topics.",
    help_epilogue="""Examples:
  changefeed validate -f examples/demo.yaml
  changefeed run -f examples/demo.yaml
  changefeed verify -f examples/demo.yaml --conserved balance
  changefeed get --all-namespaces
  changefeed pause orders -n shop --wait

Exit codes: 0 done or drained, 1 failed, 2 bad input, 3 nothing to verify against or a table can't be restored,
4 verify found a broken promise, 69 upstream or sink unavailable, 75 another driver took over, 130 second Ctrl-C.""",
    help_format="plaintext",
    version=lambda: version("changefeed-operator"),
    suppress_keyboard_interrupt=False,
)
app.command(
    run,
    help_epilogue="""Examples:
  changefeed run -f examples/demo.yaml
  changefeed run -f orders.yaml --master "local[8,8]" --metrics-port 0 --json

Ctrl-C or SIGTERM drains: planned files are written and the checkpoint is printed. The next run resumes from there.""",
)
app.command(
    verify,
    help_epilogue="""Examples:
  changefeed verify -f examples/demo.yaml --conserved balance
  changefeed verify --uri file:///lake/orders --pd http://127.0.0.1:2379 --json""",
)
app.command(hold, help_epilogue="Example:\n  changefeed hold -f orders.yaml --secrets-dir /etc/changefeed/secrets")
app.command(close, help_epilogue="Example:\n  changefeed close -f orders.yaml --secrets-dir /etc/changefeed/secrets")
app.command(
    adopt,
    help_epilogue="""Examples:
  changefeed adopt -f orders.yaml --secrets-dir secrets
  changefeed adopt -f orders.yaml --secrets-dir secrets --confirm
  changefeed adopt -f orders.yaml --secrets-dir secrets --ticdc""",
)
app.command(
    gc,
    help_epilogue="""Examples:
  changefeed gc --state s3://cdc-state
  changefeed gc --state s3://cdc-state --close shop/orders""",
)
app.command(
    tail,
    help_epilogue="""Examples:
  changefeed tail s3://lake/orders
  changefeed tail file:///lake/orders --from-ts 0 --no-follow --table 'shop.*'""",
)
app.command(
    restore,
    help_epilogue="""Examples:
  changefeed restore s3://lake/orders --to-ts 2026-01-31T12:00:00Z --into ./before
  changefeed restore s3://lake/orders --to-ts 470617531319320577 --into mysql://root@127.0.0.1:4000 --table 'shop.*'""",
)
app.command(
    flashback,
    help_epilogue="""Examples:
  changefeed flashback s3://lake/orders --to-ts 2026-01-31T12:00:00Z
  changefeed flashback s3://lake/orders --to-ts 2026-01-31T12:00:00Z --apply mysql://root@127.0.0.1:4000""",
)
app.command(
    ui,
    help_epilogue="""Examples:
  changefeed ui
  changefeed ui -f orders.yaml --driver 127.0.0.1:9464
  changefeed ui --state s3://cdc-state --address 127.0.0.1:0""",
)
app.command(
    import_ticdc,
    name="import",
    help_epilogue="""Examples:
  changefeed import --sink-uri "s3://lake/orders?protocol=csv" --config cf.toml --pd http://pd:2379 > orders.yaml
  changefeed import --sink-uri "kafka://broker:9092/orders?protocol=canal-json" --name orders

Options without an equivalent are listed as comments in the YAML and on standard error.""",
)
app.command(tso)
app.command(resources, name="*")
app.command(
    validate,
    help_epilogue="""Examples:
  changefeed validate -f orders.yaml
  changefeed validate -f orders.yaml --json
  changefeed validate -f orders.yaml --secrets-dir secrets""",
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; gives the exit code (docs/running.md, Exit codes).

    What is not a ChangefeedError is a fault of ours and keeps its traceback.
    """
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # an error is shown once, by us
    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")  # its handlers can end the fork that becomes Spark's JVM
    arguments = list(sys.argv[1:] if argv is None else argv)
    as_json = "--json" in arguments
    log = termination_log(os.environ) if arguments and arguments[0] in _POD_VERBS else None
    try:
        code: int | None = app(arguments, exit_on_error=False, print_error=False, result_action="return_value")
    except ChangefeedError as error:
        write_failure(error, as_json)
        newest = error.newest_attempt if isinstance(error, Fenced) else 0
        facts = {"newestAttempt": str(newest)} if newest else {}
        write_termination(log, type(error).__name__, error.message, error.next_step, **facts)
        return error.exit_code
    except CycloptsError as error:
        write_error("BadArguments", str(error), "See changefeed --help.", as_json)
        write_termination(log, "BadArguments", str(error), "See changefeed --help.")
        return _BAD_INPUT
    except KeyboardInterrupt:
        return _INTERRUPTED
    return code or 0


if __name__ == "__main__":
    sys.exit(main())
