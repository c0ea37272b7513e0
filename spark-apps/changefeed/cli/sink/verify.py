"""`changefeed verify`: checks a sink against its upstream."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from changefeed.cli.arguments import AsJson, Pd, SecretsDir
from changefeed.cli.config_file import read
from changefeed.cli.output import write_json
from changefeed.errors import InvalidSpec

_FOUND_A_BREAK = 4


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

    Files and topics are compared with the upstream's history since startTs, which must still be there: TiDB's GC keeps
    ten minutes unless tidb_gc_life_time says more. PostgreSQL keeps no history: sinks of all kinds are compared with
    its tables as they stand, while the changefeed runs.

    Exit codes: 0 every promise holds, 3 can't be checked, 4 a promise is broken.

    Parameters
    ----------
    uri
        Root folder of a storage sink, instead of -f.
    conserved
        A column whose sum over all tables no transaction changes. Storage sinks of TiKV only.
    """
    if (file is None) == (uri is None) or (uri is None) != (not pd):
        raise InvalidSpec(
            "arguments", "allowed: -f FILE, or --uri URI with --pd ADDRESS", "See changefeed verify --help."
        )

    import asyncio

    from rich.console import Console

    from changefeed.cli.sink.verdict import open_progress, write_verdict
    from changefeed.upstream.tikv.access import TikvAccess
    from changefeed.upstream.written_rows import MaskKeys
    from changefeed.verify.choice import verify_sink
    from changefeed.verify.storage import report

    with open_progress(Console(file=sys.stderr), silent=as_json) as progress:
        if file is not None:
            checking = verify_sink(read(file), secrets_dir, conserved, progress)
        else:
            assert uri is not None
            assert pd is not None
            sink = report.StoredSink(uri, mask_keys=MaskKeys(secrets_dir))
            checking = report.verify(sink, TikvAccess(tuple(pd)), conserved, progress)
        result = asyncio.run(checking)
    if as_json:
        write_json(result.to_json())
    else:
        write_verdict(result.to_json())
    return 0 if result.ok else _FOUND_A_BREAK
