#!/bin/bash
# product.sh SOURCE: our code from the checkout SOURCE, and its commands, as $CHANGEFEED_HOME/product. The development
# cluster is for laptops and tests: its code is no part of SOURCE, and its command is taken away.
set -euo pipefail
source=$1
"$CHANGEFEED_HOME/venv/bin/python" -m pip --disable-pip-version-check --no-cache-dir install --quiet \
  --no-compile --no-index --no-deps --no-build-isolation --target "$CHANGEFEED_HOME/product" "$source"
rm "$CHANGEFEED_HOME/product/bin/changefeed-devcluster"
"$(dirname "$0")/compile.sh" "$CHANGEFEED_HOME/product"
chmod -R u=rwX,go=rX "$CHANGEFEED_HOME/product"
