#!/bin/bash
# compile.sh FOLDER: compiles all Python in FOLDER, reproducibly. Files in an image don't change, so the bytecode is
# never checked against its sources.
set -euo pipefail
PYTHONHASHSEED=0 "$CHANGEFEED_HOME/venv/bin/python" -m compileall -q --invalidation-mode unchecked-hash "$1"
