#!/bin/bash
# product.sh SOURCE: our code from the checkout SOURCE, and its commands, as $CHANGEFEED_HOME/product.
set -euo pipefail
source=$1
"$CHANGEFEED_HOME/venv/bin/python" -m pip --disable-pip-version-check --no-cache-dir install --quiet \
  --no-index --no-deps --no-build-isolation --target "$CHANGEFEED_HOME/product" "$source"
# The development cluster is for laptops and tests.
rm -r "$CHANGEFEED_HOME/product/changefeed_devcluster" "$CHANGEFEED_HOME/product/bin/changefeed-devcluster"
chmod -R a+rX "$CHANGEFEED_HOME/product"
