#!/bin/bash
# product.sh SOURCE: our code from the checkout SOURCE, and its commands, as $CHANGEFEED_HOME/product.
set -euo pipefail
source=$1
"$CHANGEFEED_HOME/venv/bin/python" -m pip --disable-pip-version-check --no-cache-dir install --quiet \
  --no-index --no-deps --no-build-isolation --target "$CHANGEFEED_HOME/product" "$source"
chmod -R a+rX "$CHANGEFEED_HOME/product"
