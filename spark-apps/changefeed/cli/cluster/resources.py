"""Commands for Changefeeds on Kubernetes: what kubectl can do too, in this tool's terms."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from typing import Annotated

from cyclopts import App, Parameter

from changefeed.cli.arguments import AsJson, Context, Name, Namespace
from changefeed.cli.cluster.description import HEAD, condition, description, row, summary, table
from changefeed.cli.cluster.kube import ChangefeedCluster, Resource
from changefeed.cli.output import write_json, write_text
from changefeed.errors import InvalidSpec, NeedsHuman
from changefeed.spec.field.quantity import parse_duration

resources = App(name="resources", help_format="plaintext")
_Wait = Annotated[bool, Parameter(negative="", help="Wait until it has taken effect.")]
_Timeout = Annotated[str, Parameter(help='Timeout of --wait, such as "5m".')]


@resources.command(
    help_epilogue="""Examples:
  changefeed get
  changefeed get orders -n shop --json
  changefeed get --all-namespaces"""
)
def get(
    name: Annotated[str | None, Parameter(name="NAME", help="Only this Changefeed.")] = None,
    *,
    namespace: Namespace = None,
    context: Context = None,
    all_namespaces: Annotated[bool, Parameter(name=["--all-namespaces", "-A"], negative="")] = False,
    as_json: AsJson = False,
) -> None:
    """List Changefeeds and their progress."""
    cluster = ChangefeedCluster.connect(context, namespace)
    found = [cluster.get(name)] if name else cluster.changefeeds(all_namespaces)
    if as_json:
        write_json({"changefeeds": [summary(resource) for resource in found]})
        return
    if not found:
        write_text(f"No Changefeeds in {'any namespace' if all_namespaces else f'namespace {cluster.namespace}'}.")
        return
    now = datetime.now(UTC)
    rows = [row(resource, now) for resource in found]
    for line in table([words if all_namespaces else words[1:] for words in [list(HEAD), *rows]]):
        write_text(line)


@resources.command(help_epilogue="Example:\n  changefeed describe orders -n shop")
def describe(name: Name, *, namespace: Namespace = None, context: Context = None, as_json: AsJson = False) -> None:
    """Show one Changefeed in detail: its state, conditions, last error and events."""
    cluster = ChangefeedCluster.connect(context, namespace)
    resource, events = cluster.get(name), cluster.events(name)
    if as_json:
        resource["metadata"].pop("managedFields", None)
        for event in events:
            event["last"] = event["last"].isoformat()
        write_json({"changefeed": resource, "events": events})
        return
    for line in description(resource, events, datetime.now(UTC)):
        write_text(line)


@resources.command(
    help_epilogue="""Examples:
  changefeed pause orders -n shop
  changefeed pause orders --wait --timeout 2m"""
)
def pause(
    name: Name,
    *,
    namespace: Namespace = None,
    context: Context = None,
    wait: _Wait = False,
    timeout: _Timeout = "5m",
    as_json: AsJson = False,
) -> None:
    """Drain and stop a Changefeed. `resume` continues from its checkpoint."""
    _turn(ChangefeedCluster.connect(context, namespace), name, True, _seconds(timeout) if wait else None, as_json)


@resources.command(help_epilogue="Example:\n  changefeed resume orders -n shop --wait")
def resume(
    name: Name,
    *,
    namespace: Namespace = None,
    context: Context = None,
    wait: _Wait = False,
    timeout: _Timeout = "5m",
    as_json: AsJson = False,
) -> None:
    """Resume a paused Changefeed."""
    _turn(ChangefeedCluster.connect(context, namespace), name, False, _seconds(timeout) if wait else None, as_json)


@resources.command(
    help_epilogue="""Examples:
  changefeed restart orders -n shop
  changefeed restart --all -n shop
  changefeed restart --all --all-namespaces"""
)
def restart(
    name: Annotated[str | None, Parameter(name="NAME", help="Only this Changefeed.")] = None,
    *,
    every: Annotated[bool, Parameter(name="--all", negative="", help="All Changefeeds of the namespace.")] = False,
    namespace: Namespace = None,
    context: Context = None,
    all_namespaces: Annotated[bool, Parameter(name=["--all-namespaces", "-A"], negative="")] = False,
    as_json: AsJson = False,
) -> None:
    """Drain and restart Changefeeds from their checkpoint, to roll out an image or after fixing a failure."""
    if (name is None) != every or (all_namespaces and not every):
        raise InvalidSpec("arguments", "allowed: NAME, or --all, optionally with --all-namespaces")
    cluster = ChangefeedCluster.connect(context, namespace)
    found = [cluster.get(name)] if name else cluster.changefeeds(all_namespaces)
    changed = [cluster.restart(resource) for resource in found]
    if as_json:
        write_json({"changefeeds": [summary(resource) for resource in changed]})
        return
    for resource in changed:
        metadata = resource["metadata"]
        write_text(f"Changefeed {metadata['namespace']}/{metadata['name']} restarts.")
    if not changed:
        write_text(f"No Changefeeds in {'any namespace' if all_namespaces else f'namespace {cluster.namespace}'}.")


@resources.command(
    help_epilogue="""Examples:
  changefeed logs orders -n shop --tail 100
  changefeed logs orders --follow
  changefeed logs orders --previous"""
)
def logs(
    name: Name,
    *,
    namespace: Namespace = None,
    context: Context = None,
    follow: Annotated[bool, Parameter(name=["--follow", "-f"], negative="", help="Keep printing new lines.")] = False,
    tail: Annotated[int | None, Parameter(help="Only this many lines from the end.")] = None,
    previous: Annotated[bool, Parameter(negative="", help="The end of the log of the last failed attempt.")] = False,
) -> None:
    """Print the log of a Changefeed's driver."""
    cluster = ChangefeedCluster.connect(context, namespace)
    if previous:
        attempt, log = cluster.last_log(name)
        sys.stderr.write(f"The log of attempt {attempt}, which failed:\n")
        lines = log.splitlines(keepends=True)
        sys.stdout.write("".join(lines[-tail:] if tail else lines))
        return

    def write(part: bytes) -> None:
        sys.stdout.buffer.write(part)
        sys.stdout.buffer.flush()

    cluster.log(name, tail, follow, write)


def _turn(cluster: ChangefeedCluster, name: str, paused: bool, seconds: float | None, as_json: bool) -> None:
    """`seconds`: how long to wait until it is reached; None: not at all."""
    resource = cluster.set_paused(name, paused)
    generation = resource["metadata"]["generation"]

    def is_reached(found: Resource) -> bool:
        ready, stalled = (condition(found, kind) for kind in ("Ready", "Stalled"))
        if found.get("status", {}).get("observedGeneration", -1) < generation:
            return False
        if stalled.get("status") == "True" and not paused:
            raise NeedsHuman(f"Changefeed {cluster.namespace}/{name}: {stalled.get('message', '')}")
        return bool(ready.get("status") == "True") and (ready.get("reason") == "Paused") == paused

    if seconds is not None:
        resource = cluster.wait(name, is_reached, seconds)
    if as_json:
        write_json(summary(resource))
        return
    done = {True: "is paused", False: "is running"}
    if seconds is None:
        done = {True: "is pausing", False: "is resuming"}
    checkpoint = resource.get("status", {}).get("checkpointTs")
    at = f" at checkpoint {checkpoint}" if checkpoint and seconds is not None else ""
    write_text(f"Changefeed {cluster.namespace}/{name} {done[paused]}{at}.")


def _seconds(text: str) -> float:
    try:
        return parse_duration(text)
    except ValueError:
        raise InvalidSpec("--timeout", f'{text!r}; allowed: a duration such as "90s" or "5m"') from None
