"""What is drawn in a test goes by the commit, so that a run of it can be had again; or by CHANGEFEED_SEED."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

_COMMIT = subprocess.run(["git", "rev-parse", "HEAD"], cwd=Path(__file__).parent, capture_output=True, text=True)
SEED = int(os.environ.get("CHANGEFEED_SEED") or int(_COMMIT.stdout[:8] or "1", 16))
