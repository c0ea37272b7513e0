#!/bin/bash
# compile.sh FOLDER: compiles all Python in it, to the same bytes each time. An image does not change under its
# programs, so the compiled files are good whatever the time of their sources.
set -euo pipefail
PYTHONHASHSEED=0 "$CHANGEFEED_HOME/venv/bin/python" -m compileall -q --invalidation-mode unchecked-hash "$1"
