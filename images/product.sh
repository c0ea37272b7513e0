#!/bin/bash
# product.sh SOURCE: our code beside the libraries, from the checkout SOURCE; then what only builds is taken away.
set -euo pipefail
source=$1
pip() { "$CHANGEFEED_HOME/venv/bin/python" -m pip --disable-pip-version-check --no-cache-dir "$@"; }
pip install --quiet --no-index --no-deps --no-build-isolation "$source"
pip uninstall --quiet --yes setuptools wheel pip
