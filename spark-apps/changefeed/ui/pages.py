"""Renders the pages as HTML. Every value is redacted and escaped automatically, so no template can forget to."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from changefeed.ui import text
from changefeed.ui.chart import BANDS, lag_chart
from changefeed.ui.view import TABLES_SHOWN, ChangefeedView, Overview, lag_of, ms_of

#: Seconds between refreshes.
REFRESH_S = 2
#: The same for browsers without JavaScript, which reload the whole page.
SCRIPTLESS_REFRESH_S = 10

ASSETS = Path(__file__).parent / "assets"


def overview_page(overview: Overview, where: str, now_ms: int) -> str:
    """All changefeeds. `where`: who serves the page, in a few words; `now_ms`: the server's clock."""
    return _render("overview.html", overview=overview, where=where, now_ms=now_ms, title="Changefeeds")


def changefeed_page(changefeed: ChangefeedView, where: str, now_ms: int) -> str:
    """One changefeed, with at most TABLES_SHOWN tables."""
    return _render(
        "changefeed.html",
        one=changefeed,
        where=where,
        now_ms=now_ms,
        title=f"{changefeed.namespace}/{changefeed.name}",
        chart=lag_chart(changefeed.lags),
        bands=BANDS,
        tables=changefeed.tables[:TABLES_SHOWN],
    )


def failure_page(heading: str, message: str, next_step: str, where: str, now_ms: int) -> str:
    """Shown instead of a page that can't be rendered."""
    return _render(
        "failure.html",
        title=heading,
        heading=heading,
        message=message,
        next_step=next_step,
        where=where,
        now_ms=now_ms,
    )


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("changefeed.ui"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_shown,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "ago": text.ago,
        "count": text.count,
        "duration": text.duration,
        "iso": text.iso,
        "lag": lag_of,
        "moment": text.moment,
        "ms": ms_of,
        "size": text.size,
    }
    environment.globals |= {"refresh_s": REFRESH_S, "scriptless_refresh_s": SCRIPTLESS_REFRESH_S}
    return environment


def _render(template: str, **values: Any) -> str:
    return str(_environment().get_template(template).render(values))


def _shown(value: object) -> str:
    """Our own HTML, such as the chart, is already Markup; everything else is untrusted text."""
    return value if isinstance(value, Markup) else text.redact(str(value))
