"""`changefeed adopt`: hands a log and its sink over to a new Changefeed, from a deleted one or from TiCDC."""

from __future__ import annotations

from collections.abc import Sequence
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

    from changefeed.owner.adoption import Adoption
    from changefeed.owner.adoption import adopt as adopt_changefeed
    from changefeed.ticdc.adoption import Takeover, adopt_ticdc

    changefeed = read(file)
    how = changefeed, secrets_dir, confirm
    taken: Adoption | Takeover = asyncio.run(adopt_ticdc(*how)) if ticdc else asyncio.run(adopt_changefeed(*how))
    if as_json:
        shown = {name: str(value) if name.endswith("_ts") else value for name, value in asdict(taken).items()}
        write_json({"done": confirm, **shown})
        return
    at = f"{taken.checkpoint_ts} ({time_of(taken.checkpoint_ts)})"
    if isinstance(taken, Takeover):
        write_text(f"{taken.sink_uri} has {taken.files} files of {taken.tables} tables; their checkpoint is {at}.")
        _write_steps(taken.steps, changefeed, confirm, "TiCDC's changefeed is paused, and stays so")
    else:
        write_text(f"{taken.sink_uri} was written last by {taken.owner}, uid {taken.uid}; its checkpoint is {at}.")
        _write_steps(taken.steps, changefeed, confirm, "the old Changefeed is gone")


def _write_steps(steps: Sequence[str], changefeed: Changefeed, done: bool, condition: str) -> None:
    for step in steps:
        write_text(f"  - {step}")
    if done:
        write_text(f"Done. Create Changefeed {changefeed.name}; it resumes from there.")
    else:
        write_text(f"Nothing was changed. Make sure that {condition}, then run again with --confirm.")
