"""`changefeed hold` and `changefeed close`: for a changefeed that is not running."""

from __future__ import annotations

import os

from changefeed.cli.arguments import AsJson, File, SecretsDir
from changefeed.cli.config_file import read_accepted
from changefeed.cli.output import time_of, write_json, write_text
from changefeed.cli.termination import termination_log, write_termination


def hold(*, file: File, secrets_dir: SecretsDir = None, as_json: AsJson = False) -> None:
    """Renew the hold on the upstream's history for a changefeed that is not running.

    History from the checkpoint on is kept for another spec.upstream.safepointTtl. A running changefeed renews its own
    hold.
    """
    import asyncio

    from changefeed.owner.closing.undriven import NothingToHold
    from changefeed.owner.closing.undriven import hold as hold_history
    from changefeed.owner.reporting.status import hold_fields

    held, log = asyncio.run(hold_history(read_accepted(file), secrets_dir)), termination_log(os.environ)
    if isinstance(held, NothingToHold):
        text = f"There is nothing to hold: {held.why}."
        write_termination(log, "NothingToHold", text)
        facts = {"held": False, "why": held.why}
    else:
        facts = hold_fields(held)
        text = f"The history after {held.ts} ({time_of(held.ts)}) is held until {facts['until']}."
        if warning := facts.get("warning"):
            text += f" {warning}"
        write_termination(log, "Held", text, **{name: str(value) for name, value in facts.items()})
        facts = {"held": True, **facts}
    write_json(facts) if as_json else write_text(text)


def close(*, file: File, secrets_dir: SecretsDir = None, as_json: AsJson = False) -> None:
    """End a deleted changefeed for good: no driver can run it again, and the upstream keeps no history for it.

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
