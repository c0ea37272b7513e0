"""A release in a registry is enough: a node that has nothing else comes to files that are right.

CHANGEFEED_EVIDENCE=FILE: what each step took goes there.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import cluster_release_install
import pytest

pytestmark = [pytest.mark.timeout(1800), pytest.mark.usefixtures("can_have_nodes")]


def test_a_fresh_node_comes_from_a_registry_alone_to_verified_files(tmp_path: Path) -> None:
    """In a process of its own: a node's remains are known by the process that made it."""
    command = [sys.executable, cluster_release_install.__file__, tmp_path]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-5000:]
    found = json.loads(done.stdout)
    assert len(found["images"]) == 3, found  # both operators', and the data plane's
    assert len({image.partition("/")[0] for image in found["images"]}) == 1, found
    assert len([image for image in found["images"] if "@sha256:" in image]) == 2, found
    if file := os.environ.get("CHANGEFEED_EVIDENCE"):
        Path(file).write_text(json.dumps(found, indent=1) + "\n")
