#!/bin/bash
# dataplane.sh SOURCE: what makes the data plane's image Spark's: its home, the workers' Python, the entrypoint, and a
# class archive, with which a JVM starts in half the time.
set -euo pipefail
source=$1
python=$CHANGEFEED_HOME/venv/bin/python
ln -s "$("$python" -c 'import os, pyspark; print(os.path.dirname(pyspark.__file__))')" "$SPARK_HOME"
# Spark puts a zip of its modules first on its workers' path, which each of them compiles anew; here they are compiled.
printf '#!/bin/sh\nPYTHONPATH= exec %s "$@"\n' "$python" > "$PYSPARK_PYTHON"
install -m 644 "$source/spark-apps/changefeed_app.py" "$CHANGEFEED_HOME/changefeed_app.py"
install -m 755 "$source/images/entrypoint.sh" "$CHANGEFEED_HOME/entrypoint.sh"
chmod 755 "$PYSPARK_PYTHON"
"$python" -m changefeed.spark.class_archive
chmod -R a+rX "$XDG_CACHE_HOME"
