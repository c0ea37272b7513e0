"""Loads what pulls, of every kind of upstream, for pullers that are forked from a process which has it already."""

from __future__ import annotations

import changefeed.upstream.postgresql.feed
import changefeed.upstream.tikv.access
import changefeed.upstream.tikv.feed.span_feed  # noqa: F401
