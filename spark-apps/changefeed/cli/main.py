"""The command `changefeed`.

Thin: it parses arguments, calls what does the work, prints the result and chooses the exit code. Heavy libraries are
imported inside the commands that need them, so that `--help` and `validate` stay fast.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import App, CycloptsError, Parameter

from changefeed.cli.arguments import AsJson
from changefeed.cli.config_file import read, read_accepted
from changefeed.cli.flashback import flashback
from changefeed.cli.gc import gc
from changefeed.cli.output import write_error, write_failure, write_json, write_text
from changefeed.cli.resources import resources
from changefeed.cli.restore import restore
from changefeed.cli.tail import tail
from changefeed.cli.termination import termination_log, write_termination
from changefeed.cli.ui import ui
from changefeed.errors import ChangefeedError, Fenced, InvalidSpec
from changefeed.model import tso as ts

if TYPE_CHECKING:
    from changefeed.owner.pod import Pod
    from changefeed.spark.settings import Cluster
    from changefeed.spec.model import Changefeed

_BAD_INPUT = 2
_INTERRUPTED = 130
_VERIFY_FOUND_A_BREAK = 4
_TASK_ATTEMPTS = 8
_MAX_TS = (1 << 64) - 1
_POD_VERBS = frozenset({"run", "hold", "close"})  # the main ones of a container; others are run beside it

app = App(
    name="changefeed",
    help="Stream row changes from a TiKV/TiDB cluster to files, tables and topics, exactly once.",
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
tso = App(
    name="tso",
    help="Convert between a ts and a time.",
    help_epilogue="""Examples:
  changefeed tso parse 449000000000000000
  changefeed tso now --pd http://127.0.0.1:2379
  changefeed tso at 2026-01-31T12:00:00Z --json""",
)
app.command(tso)
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
app.command(resources, name="*")

File = Annotated[
    Path, Parameter(name=["--file", "-f"], help="The Changefeed as YAML, the same file that kubectl apply takes.")
]
SecretsDir = Annotated[
    Path | None,
    Parameter(
        name="--secrets-dir",
        help="Folder of Secrets, laid out as pods mount them: DIR/<secretRef.name>/<key>. Without it, credentials come "
        "from the environment (AWS_ACCESS_KEY_ID ...). Required for spec.upstream.tls.",
    ),
]
Pd = Annotated[list[str], Parameter(name="--pd", negative="", help='Address of PD, such as "http://127.0.0.1:2379".')]


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; gives the exit code (INTERFACES.md, Exit codes).

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


@app.command(
    help_epilogue="""Examples:
  changefeed validate -f orders.yaml
  changefeed validate -f orders.yaml --json""",
)
def validate(*, file: File, as_json: AsJson = False) -> None:
    """Check a Changefeed and report all problems at once, each with its field, value and what is allowed."""
    from changefeed.spec.parse import effective

    changefeed = read(file)
    if as_json:
        write_json({"ok": True, "name": changefeed.name, "effective": effective(changefeed)})
    else:
        rules = ", ".join(changefeed.spec.filter.rules)
        write_text(f"{file}: changefeed {changefeed.name} is valid: {rules} to {changefeed.spec.sink.uri}")


@app.command(
    help_epilogue="""Examples:
  changefeed run -f examples/demo.yaml
  changefeed run -f orders.yaml --master "local[8,8]" --metrics-port 0 --json

Ctrl-C or SIGTERM drains: planned files are written and the checkpoint is printed. The next run resumes from there.""",
)
def run(
    *,
    file: File,
    master: str | None = None,
    metrics_port: int = 9464,
    secrets_dir: SecretsDir = None,
    take_over: Annotated[bool, Parameter(negative="")] = False,
    attempt: int = 0,
    as_json: AsJson = False,
) -> None:
    """Run a changefeed on this machine until its targetTs or Ctrl-C.

    In a driver pod created by the operator, tasks run in executor pods.

    Parameters
    ----------
    master
        Spark master "local[N,8]" with N threads, more than spec.spark.pullers.count. Default: as many as
        spec.spark.executor has cores.
    metrics_port
        Port for /metrics on 127.0.0.1; 0 picks a free port.
    take_over
        Start even if another driver of this changefeed was alive seconds ago; that driver is fenced off.
    attempt
        The operator's attempt number. A driver whose number is not above the latest recorded one exits (75).
    """
    from changefeed.spark.jvm.java import check_java

    check_java()
    changefeed = read_accepted(file)
    if attempt < 0:
        raise InvalidSpec("--attempt", f"{attempt}; allowed: 0 (attempts are not counted) or more")
    if changefeed.spec.paused:
        raise InvalidSpec("spec.paused", "true: a paused changefeed does not run", "Set it to false, or leave it out.")
    slots = _slots(master, changefeed)

    from changefeed.owner.pod import pod_of
    from changefeed.spark.launch import Launch
    from changefeed.spark.settings import Laptop

    pod = pod_of(os.environ)
    launch = Launch(_cluster(pod) if pod else Laptop(f"local[{slots},{_TASK_ATTEMPTS}]"))
    if not pod:  # executor pods are not to be asked for before the attempt has proved to be the newest
        launch.begin()

    from rich.console import Console

    from changefeed.cli.view import LINE_INTERVAL_S, POD_LINE_INTERVAL_S, open_view
    from changefeed.kube.connection import in_pod
    from changefeed.owner.driver import RunOptions
    from changefeed.owner.driver import run as drive
    from changefeed.owner.reporting.status_writer import StatusWriter
    from changefeed.spark.execution import SparkExecution

    options = RunOptions(
        metrics_port=metrics_port,
        secrets_dir=secrets_dir,
        take_over=take_over,
        attempt=attempt,
        pod=pod,
        status=StatusWriter(pod, in_pod()) if pod else None,
    )
    every = POD_LINE_INTERVAL_S if pod else LINE_INTERVAL_S
    try:
        with open_view(Console(file=sys.stdout), silent=as_json, line_interval=every) as view:
            outcome = drive(changefeed, options, SparkExecution(launch, slots), view)
    finally:
        launch.end(keep_log=False)
    at = f"{outcome.checkpoint_ts} ({_time(outcome.checkpoint_ts)})"
    write_termination(termination_log(os.environ), outcome.state.capitalize(), f"The checkpoint is {at}.")
    if as_json:
        write_json({"name": changefeed.name, "state": outcome.state, "checkpoint_ts": str(outcome.checkpoint_ts)})
        return
    write_text(f"{outcome.state.capitalize()} at checkpoint {at}.")
    write_text(f"Written to: {outcome.sink_uri}")
    if outcome.state == "drained":
        write_text("Run the same command to resume from there.")


def _cluster(pod: Pod) -> Cluster:
    from changefeed.spark.rpc_secret import mounted_secret
    from changefeed.spark.settings import Cluster

    return replace(Cluster.of(os.environ), secret=mounted_secret(pod, os.environ))


@app.command(help_epilogue="Example:\n  changefeed hold -f orders.yaml --secrets-dir /etc/changefeed/secrets")
def hold(*, file: File, secrets_dir: SecretsDir = None, as_json: AsJson = False) -> None:
    """Renew the hold on the upstream's history for a changefeed that is not running.

    History from the checkpoint on is kept for another spec.upstream.safepointTtl. A running changefeed renews its own
    hold.
    """
    import asyncio

    from changefeed.owner.closing.undriven import NothingToHold
    from changefeed.owner.closing.undriven import hold as hold_history

    held, log = asyncio.run(hold_history(read_accepted(file), secrets_dir)), termination_log(os.environ)
    if isinstance(held, NothingToHold):
        text = f"There is nothing to hold: {held.why}."
        write_termination(log, "NothingToHold", text)
        facts = {"held": False, "why": held.why}
    else:
        until = ts.to_datetime(ts.compose(held.until_ms)).strftime("%Y-%m-%dT%H:%M:%SZ")
        text = f"The history after {held.ts} ({_time(held.ts)}) is held until {until}."
        write_termination(log, "Held", text, ts=str(held.ts), until=until)
        facts = {"held": True, "ts": str(held.ts), "until": until}
    write_json(facts) if as_json else write_text(text)


@app.command(
    help_epilogue="""Examples:
  changefeed adopt -f orders.yaml --secrets-dir secrets
  changefeed adopt -f orders.yaml --secrets-dir secrets --confirm
  changefeed adopt -f orders.yaml --secrets-dir secrets --ticdc""",
)
def adopt(
    *,
    file: File,
    secrets_dir: SecretsDir = None,
    confirm: Annotated[bool, Parameter(negative="")] = False,
    ticdc: Annotated[bool, Parameter(negative="")] = False,
    as_json: AsJson = False,
) -> None:
    """Let a Changefeed with spec.state.id take over the log and sink of one whose resource is gone.

    Without --confirm it only prints what it would do. It refuses to run while the old driver is alive.

    Parameters
    ----------
    confirm
        Carry it out.
    ticdc
        The sink is a folder written by a TiCDC changefeed that has since been paused or removed.
    """
    import asyncio
    from dataclasses import asdict

    from changefeed.owner.adoption.ours import adopt as adopt_changefeed

    changefeed = read(file)
    if ticdc:
        _adopt_ticdc(changefeed, secrets_dir, confirm, as_json)
        return
    adoption = asyncio.run(adopt_changefeed(changefeed, secrets_dir, confirm))
    at = f"{adoption.checkpoint_ts} ({_time(adoption.checkpoint_ts)})"
    if as_json:
        write_json({"done": confirm, **asdict(adoption), "checkpoint_ts": str(adoption.checkpoint_ts)})
        return
    write_text(f"{adoption.sink_uri} was written last by {adoption.owner}, uid {adoption.uid}; its checkpoint is {at}.")
    _write_steps(adoption.steps, changefeed, confirm, "the old Changefeed is gone")


def _adopt_ticdc(changefeed: Changefeed, secrets_dir: Path | None, confirm: bool, as_json: bool) -> None:
    import asyncio
    from dataclasses import asdict

    from changefeed.owner.adoption.ticdc import adopt_ticdc

    takeover = asyncio.run(adopt_ticdc(changefeed, secrets_dir, confirm))
    if as_json:
        numbers = {"checkpoint_ts": str(takeover.checkpoint_ts), "start_ts": str(takeover.start_ts)}
        write_json({"done": confirm, **asdict(takeover), **numbers})
        return
    at = f"{takeover.checkpoint_ts} ({_time(takeover.checkpoint_ts)})"
    write_text(f"{takeover.sink_uri} has {takeover.files} files of {takeover.tables} tables; their checkpoint is {at}.")
    _write_steps(takeover.steps, changefeed, confirm, "TiCDC's changefeed is paused, and stays so")


def _write_steps(steps: Sequence[str], changefeed: Changefeed, done: bool, condition: str) -> None:
    for step in steps:
        write_text(f"  - {step}")
    if done:
        write_text(f"Done. Create Changefeed {changefeed.name}; it resumes from there.")
    else:
        write_text(f"Nothing was changed. Make sure that {condition}, then run again with --confirm.")


@app.command(help_epilogue="Example:\n  changefeed close -f orders.yaml --secrets-dir /etc/changefeed/secrets")
def close(*, file: File, secrets_dir: SecretsDir = None, as_json: AsJson = False) -> None:
    """End a deleted changefeed for good: no driver can run it again, and the upstream's GC is released.

    Its files and its log stay. Safe to repeat if it fails.
    """
    import asyncio

    from changefeed.owner.closing.undriven import close as close_changefeed

    changefeed = read_accepted(file)
    now_closed = asyncio.run(close_changefeed(changefeed, secrets_dir))
    if as_json:
        write_json({"name": changefeed.name, "closed": True, "before": not now_closed})
    else:
        write_text(f"Changefeed {changefeed.name} {'is closed' if now_closed else 'was already closed'}.")


@app.command(
    help_epilogue="""Examples:
  changefeed verify -f examples/demo.yaml --conserved balance
  changefeed verify --uri file:///lake/orders --pd http://127.0.0.1:2379 --json""",
)
def verify(
    *,
    file: Annotated[Path | None, Parameter(name=["--file", "-f"], help="The Changefeed whose sink to check.")] = None,
    uri: str | None = None,
    pd: Pd | None = None,
    conserved: str | None = None,
    secrets_dir: SecretsDir = None,
    as_json: AsJson = False,
) -> int:
    """Check a sink against its upstream, row by row, up to the published checkpoint.

    Files (by FILE or URI) and Kafka topics can be checked at any time, a MySQL database only while the changefeed is
    not running.

    Exit codes: 0 every promise holds, 3 can't be checked, 4 a promise is broken.

    Parameters
    ----------
    uri
        Root folder of a storage sink, instead of -f.
    conserved
        A column whose sum over all tables no transaction changes. Storage sinks only.
    """
    if (file is None) == (uri is None) or (uri is None) != (not pd):
        raise InvalidSpec(
            "arguments", "allowed: -f FILE, or --uri URI with --pd ADDRESS", "See changefeed verify --help."
        )

    import asyncio

    from rich.console import Console

    from changefeed.cli.verdict import open_progress, write_verdict
    from changefeed.upstream.access import Access
    from changefeed.verify import report
    from changefeed.verify.choice import verify_sink

    with open_progress(Console(file=sys.stderr), silent=as_json) as progress:
        if file is not None:
            checking = verify_sink(read(file), secrets_dir, conserved, progress)
        else:
            assert uri is not None
            assert pd is not None
            checking = report.verify(report.Places(uri), Access(tuple(pd)), conserved, progress)
        result = asyncio.run(checking)
    if as_json:
        write_json(result.to_json())
    else:
        write_verdict(result.to_json())
    return 0 if result.ok else _VERIFY_FOUND_A_BREAK


@tso.command(help_epilogue="Example:\n  changefeed tso parse 449000000000000000")
def parse(ts_text: Annotated[str, Parameter(name="TS")], *, as_json: AsJson = False) -> None:
    """Show the time of a ts."""
    if not (ts_text.isascii() and ts_text.isdecimal() and int(ts_text) <= _MAX_TS):
        raise InvalidSpec("TS", f"{ts_text!r} is not a ts; allowed: digits, a number below 2^64")
    _write_ts(int(ts_text), as_json)


@tso.command(
    help_epilogue="""Examples:
  changefeed tso now --pd http://127.0.0.1:2379 --json
  changefeed tso now -f orders.yaml --secrets-dir secrets""",
)
def now(
    *,
    pd: Pd | None = None,
    file: Annotated[Path | None, Parameter(name=["--file", "-f"], help="A Changefeed whose upstream to ask.")] = None,
    secrets_dir: SecretsDir = None,
    as_json: AsJson = False,
) -> None:
    """Get a ts from PD, later than every commit so far."""
    if (file is None) == (not pd):
        raise InvalidSpec("arguments", "allowed: --pd ADDRESS, or -f FILE", "See changefeed tso now --help.")

    import asyncio

    from changefeed.owner.places import upstream_access
    from changefeed.upstream.access import Access

    upstream = upstream_access(read(file), secrets_dir) if file is not None else Access(tuple(pd or ()))

    async def ask() -> int:
        client = await upstream.connect()
        try:
            return await client.tso()
        finally:
            await client.close()

    _write_ts(asyncio.run(ask()), as_json)


@tso.command(help_epilogue="Example:\n  changefeed tso at 2026-01-31T12:00:00+01:00")
def at(time: Annotated[str, Parameter(name="TIME")], *, as_json: AsJson = False) -> None:
    """Give the first ts of a time (ISO 8601, with a time zone)."""
    _write_ts(ts.ts_of_time(time, "TIME"), as_json)


def _slots(master: str | None, changefeed: Changefeed) -> int:
    """How many Spark tasks may run at once; each puller occupies one permanently."""
    spark = changefeed.spec.spark
    if master is None:
        return spark.executor.slots
    threads, comma, attempts = master.removeprefix("local[").removesuffix("]").partition(",")
    wrong = not (master.startswith("local[") and master.endswith("]") and threads.isdecimal())
    if wrong or (comma and attempts != str(_TASK_ATTEMPTS)) or int(threads) <= spark.pullers.count:
        lowest = spark.pullers.count + 1
        raise InvalidSpec(
            "--master",
            f"{master!r}; allowed: local[N,{_TASK_ATTEMPTS}] with N from {lowest} on",
            f"{spark.pullers.count} pullers hold a thread each (spec.spark.pullers.count).",
        )
    return int(threads)


def _write_ts(value: int, as_json: bool) -> None:
    if as_json:
        write_json(
            {
                "ts": str(value),
                "time": ts.to_datetime(value).isoformat(timespec="milliseconds"),
                "physical_ms": ts.physical_ms(value),
                "logical": ts.logical(value),
            }
        )
    else:
        write_text(f"{value}  {_time(value)}, logical {ts.logical(value)}")


def _time(value: int) -> str:
    return ts.to_datetime(value).isoformat(sep=" ", timespec="milliseconds").replace("+00:00", " UTC")


if __name__ == "__main__":
    sys.exit(main())
