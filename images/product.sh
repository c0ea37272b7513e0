#!/bin/bash
# product.sh SOURCE: installs our code and commands from the checkout SOURCE into $CHANGEFEED_HOME/product. The
# development cluster is only for laptops and tests: SOURCE does not include its code, and its command is removed.
set -euo pipefail
source=$1
"$CHANGEFEED_HOME/venv/bin/python" -m pip --disable-pip-version-check --no-cache-dir install --quiet \
  --no-compile --no-index --no-deps --no-build-isolation --target "$CHANGEFEED_HOME/product" "$source"
rm "$CHANGEFEED_HOME/product/bin/changefeed-devcluster"
"$(dirname "$0")/compile.sh" "$CHANGEFEED_HOME/product"
chmod -R u=rwX,go=rX "$CHANGEFEED_HOME/product"
