"""`changefeed adopt`: hands a log and its sink over to a new Changefeed, from a deleted one or from TiCDC."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from changefeed.cli.arguments import AsJson, File, SecretsDir
from changefeed.cli.config_file import read
from changefeed.cli.output import time_of, write_json, write_text

if TYPE_CHECKING:
    from changefeed.spec.model import Changefeed


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

    from changefeed.owner.adoption import adopt as adopt_changefeed

    changefeed = read(file)
    if ticdc:
        _adopt_ticdc(changefeed, secrets_dir, confirm, as_json)
        return
    adoption = asyncio.run(adopt_changefeed(changefeed, secrets_dir, confirm))
    at = f"{adoption.checkpoint_ts} ({time_of(adoption.checkpoint_ts)})"
    if as_json:
        write_json({"done": confirm, **asdict(adoption), "checkpoint_ts": str(adoption.checkpoint_ts)})
        return
    write_text(f"{adoption.sink_uri} was written last by {adoption.owner}, uid {adoption.uid}; its checkpoint is {at}.")
    _write_steps(adoption.steps, changefeed, confirm, "the old Changefeed is gone")


def _adopt_ticdc(changefeed: Changefeed, secrets_dir: Path | None, confirm: bool, as_json: bool) -> None:
    import asyncio
    from dataclasses import asdict

    from changefeed.ticdc.adoption import adopt_ticdc

    takeover = asyncio.run(adopt_ticdc(changefeed, secrets_dir, confirm))
    if as_json:
        numbers = {"checkpoint_ts": str(takeover.checkpoint_ts), "start_ts": str(takeover.start_ts)}
        write_json({"done": confirm, **asdict(takeover), **numbers})
        return
    at = f"{takeover.checkpoint_ts} ({time_of(takeover.checkpoint_ts)})"
    write_text(f"{takeover.sink_uri} has {takeover.files} files of {takeover.tables} tables; their checkpoint is {at}.")
    _write_steps(takeover.steps, changefeed, confirm, "TiCDC's changefeed is paused, and stays so")


def _write_steps(steps: Sequence[str], changefeed: Changefeed, done: bool, condition: str) -> None:
    for step in steps:
        write_text(f"  - {step}")
    if done:
        write_text(f"Done. Create Changefeed {changefeed.name}; it resumes from there.")
    else:
        write_text(f"Nothing was changed. Make sure that {condition}, then run again with --confirm.")
