"""What Spark's JVM prints when it fails, cut down to the line that says why. Pure.

spark-submit and the driver print alike: dozens of lines about themselves, then an exception with its stack and causes.
The Spark operator hands all of it on as its error message.
"""

from __future__ import annotations

import re

#: What the API server answered, between the words of Spark's Kubernetes client.
_REFUSED = re.compile(r"KubernetesClientException: .*?Message: (.+?)\.? Received status: ")
#: Each executor has a number, and a message must not change with it.
_NAMED = re.compile(r'^\w+ "[^"]*" is (forbidden|invalid): ')
_CAUSE = re.compile(r"^Caused by: (.+)$", re.MULTILINE)
_EXCEPTION = re.compile(r'^Exception in thread "[^"]*" (.+)$', re.MULTILINE)
#: What to do about a refusal.
AGAINST_REFUSAL = "Ask for less in spec.spark, or have that rule changed."

_FRAME = re.compile(r"\s+(at |\.\.\. \d+ more)")
_LONGEST = 400


def refusal_in(text: str) -> str:
    """The last refusal of the API server, in its own words; "" when there is none. No full stop, no pod's name."""
    found = _REFUSED.findall(text)
    return _clipped(_NAMED.sub("", found[-1])) if found else ""


def cause_in(text: str) -> str:
    """Why a JVM ended: the innermost cause of its exception, else the last line. No full stop; "" for nothing."""
    if found := _CAUSE.findall(text) or _EXCEPTION.findall(text):
        return _clipped(found[-1])
    lines = [line for line in text.splitlines() if line.strip() and not _FRAME.match(line)]
    return _clipped(lines[-1]) if lines else ""


def _clipped(line: str) -> str:
    return line.strip()[:_LONGEST].rstrip(". ")
