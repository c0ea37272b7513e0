"""What a release says of itself: bills of materials, where it comes from, and checksums.

The formats are CycloneDX's JSON, and in-toto's statement with SLSA's predicate: https://in-toto.io/Statement/v1,
https://slsa.dev/provenance/v1
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from release.commit import Commit

CHECKSUMS = "SHA256SUMS"
#: What `externalParameters` means, and what has built the release (docs/releasing.md, Provenance).
_BUILD_TYPE = "https://changefeed.dev/release/v1"
_BUILDER = "https://changefeed.dev/release/make"
#: A locked requirement: name, version, and for which machines, as in `pywin32==311 ; sys_platform == 'win32' \`.
_LOCKED = re.compile(r"^([A-Za-z0-9._-]+)(?:\[[^]]*\])?==([^\s;\\]+)(?:\s*;\s*([^\\\n]+))?", re.MULTILINE)


def undated(document: dict[str, Any], epoch: int) -> str:
    """A bill without what differs each time it is written: dated by the commit, and without its serial number."""
    metadata = {**document["metadata"], "timestamp": datetime.fromtimestamp(epoch, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")}
    kept = {name: value for name, value in document.items() if name != "serialNumber"}
    return json.dumps({**kept, "metadata": metadata}, indent=1, sort_keys=True) + "\n"


def bill_of_locks(name: str, version: str, locks: list[Path], epoch: int) -> str:
    """The bill of a Python distribution: the libraries that it is tested with, of these lock files."""
    found = {match.groups() for lock in locks for match in _LOCKED.finditer(lock.read_text())}
    component = {"type": "application", "name": name, "version": version, "purl": _purl(name, version)}
    described: dict[str, Any] = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": {**component, "bom-ref": _purl(name, version)}},
        "components": [_library(*each) for each in sorted(found, key=lambda each: (each[0], each[1], each[2] or ""))],
    }
    return undated(described, epoch)


def _library(name: str, version: str, marker: str | None) -> dict[str, Any]:
    library: dict[str, Any] = {"type": "library", "name": name, "version": version, "purl": _purl(name, version)}
    library["bom-ref"] = library["purl"] + (f"#{marker.strip()}" if marker else "")
    if marker:
        library["properties"] = [{"name": "python:marker", "value": marker.strip()}]
    return library


def _purl(name: str, version: str) -> str:
    return f"pkg:pypi/{re.sub(r'[-_.]+', '-', name).lower()}@{version}"


def digests(folder: Path) -> dict[str, str]:
    """The SHA-256 of each file, by name."""
    files = sorted(path for path in folder.iterdir() if path.is_file())
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def statement(commit: Commit, registry: str, subjects: Mapping[str, str], locks: Mapping[str, str]) -> str:
    """The statement. `subjects`, `locks`: SHA-256 by the name of what was made, and of what fixes its libraries.

    It has no time and no number of the build: the same commit always gives the same statement.
    """
    depends = [{"name": "changefeed-operator", "digest": {"gitCommit": commit.sha}}]
    depends += [{"name": name, "digest": {"sha256": digest}} for name, digest in sorted(locks.items())]
    predicate = {
        "buildDefinition": {
            "buildType": _BUILD_TYPE,
            "externalParameters": {"version": commit.version, "registry": registry},
            "internalParameters": {"SOURCE_DATE_EPOCH": commit.epoch},
            "resolvedDependencies": depends,
        },
        "runDetails": {"builder": {"id": _BUILDER}},
    }
    described = {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": [{"name": name, "digest": {"sha256": digest}} for name, digest in sorted(subjects.items())],
        "predicateType": "https://slsa.dev/provenance/v1",
        "predicate": predicate,
    }
    return json.dumps(described, indent=1) + "\n"


def write_checksums(folder: Path) -> Path:
    """Write what `sha256sum --check` reads, of all files that are there."""
    lines = [f"{digest}  {name}\n" for name, digest in digests(folder).items()]
    file = folder / CHECKSUMS
    file.write_text("".join(lines))
    return file
