#!/bin/bash
# libraries.sh REQUIREMENTS [LOCK]: creates a virtual environment in $CHANGEFEED_HOME with exactly the libraries in the
# lock file LOCK of the folder REQUIREMENTS, or, without LOCK, the build tools for our code. Our code is installed beside
# it later.
set -euo pipefail
requirements=$1 lock=${2:-}
python3 -m venv "$CHANGEFEED_HOME/venv"
pip() { "$CHANGEFEED_HOME/venv/bin/python" -m pip --disable-pip-version-check --no-cache-dir "$@"; }
# Build tools are locked too: without build isolation, nothing else is fetched.
pip install --quiet --no-compile --require-hashes -r "$requirements/build.txt"
if [ -n "$lock" ]; then
  pip install --quiet --no-compile --require-hashes --no-build-isolation -r "$requirements/$lock.txt"
  pip uninstall --quiet --yes setuptools wheel pip
  for packages in "$CHANGEFEED_HOME"/venv/lib/python3.*/site-packages; do
    printf '%s\n' "$CHANGEFEED_HOME/product" > "$packages/product.pth"
  done
  "$(dirname "$0")/compile.sh" "$CHANGEFEED_HOME/venv"
fi
