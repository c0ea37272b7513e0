"""What pipeline tasks need beyond the owner's address."""

from __future__ import annotations

from dataclasses import dataclass

from changefeed.objectstore import Place


@dataclass(frozen=True)
class PipelineJob:
    state: Place  # the changefeed's own: segments
    sink: Place
