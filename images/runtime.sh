#!/bin/bash
# runtime.sh CLASS_ARCHIVE_PY CLASSES: what makes the data plane's image Spark's: its home, the workers' Python, and an
# archive of the CLASSES, with which a JVM starts in half the time.
set -euo pipefail
class_archive=$1 classes=$2
python=$CHANGEFEED_HOME/venv/bin/python
ln -s "$("$python" -c 'import os, pyspark; print(os.path.dirname(pyspark.__file__))')" "$SPARK_HOME"
# Spark puts a zip of its modules first on its workers' path, which each of them compiles anew; here they are compiled.
printf '#!/bin/sh\nPYTHONPATH= exec %s "$@"\n' "$python" > "$PYSPARK_PYTHON"
chmod 755 "$PYSPARK_PYTHON"
"$python" "$class_archive" --classes "$classes"
chmod -R a+rX "$XDG_CACHE_HOME"
rm -rf /tmp/hsperfdata_* # named by the process
