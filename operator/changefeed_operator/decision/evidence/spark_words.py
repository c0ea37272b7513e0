"""What Spark's JVM prints when it fails, cut down to the line that says why. Pure.

spark-submit and the driver print dozens of lines about themselves, then an exception with its stack trace and causes.
The Spark operator passes all of it on as its error message.
"""

from __future__ import annotations

import re

#: The API server's answer within the message of Spark's Kubernetes client.
_REFUSED = re.compile(r"KubernetesClientException: .*?Message: (.+?)\.? Received status: ")
#: The object's name: executors are numbered, and the message must not change with the number.
_NAMED = re.compile(r'^\w+ "[^"]*" is (forbidden|invalid): ')
_CAUSE = re.compile(r"^Caused by: (.+)$", re.MULTILINE)
_EXCEPTION = re.compile(r'^Exception in thread "[^"]*" (.+)$', re.MULTILINE)
#: What to do about a refusal.
AGAINST_REFUSAL = "Request less in spec.spark, or have the rule changed."

_FRAME = re.compile(r"\s+(at |\.\.\. \d+ more)")
_LONGEST = 400


def refusal_in(text: str) -> str:
    """The API server's last rejection, verbatim, without full stop or pod name; "" if there is none."""
    found = _REFUSED.findall(text)
    return _clipped(_NAMED.sub("", found[-1])) if found else ""


def cause_in(text: str) -> str:
    """Why a JVM exited: the innermost cause of its exception, else the last line, without full stop; "" if unknown."""
    if found := _CAUSE.findall(text) or _EXCEPTION.findall(text):
        return _clipped(found[-1])
    lines = [line for line in text.splitlines() if line.strip() and not _FRAME.match(line)]
    return _clipped(lines[-1]) if lines else ""


def _clipped(line: str) -> str:
    return line.strip()[:_LONGEST].rstrip(". ")
