#!/bin/bash
# libraries.sh REQUIREMENTS [LOCK]: a virtual environment of exactly the libraries in LOCK, a file of the folder
# REQUIREMENTS; without LOCK, of what builds our code. $CHANGEFEED_HOME is where it will be used; our code will stand
# beside it.
set -euo pipefail
requirements=$1 lock=${2:-}
python3 -m venv "$CHANGEFEED_HOME/venv"
pip() { "$CHANGEFEED_HOME/venv/bin/python" -m pip --disable-pip-version-check --no-cache-dir "$@"; }
# What builds is locked too: without isolation nothing else is fetched.
pip install --quiet --no-compile --require-hashes -r "$requirements/build.txt"
if [ -n "$lock" ]; then
  pip install --quiet --no-compile --require-hashes --no-build-isolation -r "$requirements/$lock.txt"
  pip uninstall --quiet --yes setuptools wheel pip
  for packages in "$CHANGEFEED_HOME"/venv/lib/python3.*/site-packages; do
    printf '%s\n' "$CHANGEFEED_HOME/product" > "$packages/product.pth"
  done
  "$(dirname "$0")/compile.sh" "$CHANGEFEED_HOME/venv"
fi
