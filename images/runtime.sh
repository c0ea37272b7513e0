#!/bin/bash
# runtime.sh CLASS_ARCHIVE_PY CLASSES: sets up Spark in the data plane image: SPARK_HOME, the Python for its workers, and
# a class archive of CLASSES that halves JVM startup time.
set -euo pipefail
class_archive=$1 classes=$2
python=$CHANGEFEED_HOME/venv/bin/python
ln -s "$("$python" -c 'import os, pyspark; print(os.path.dirname(pyspark.__file__))')" "$SPARK_HOME"
# Spark puts a zip of its modules first on its workers' path, and each worker recompiles it. Use the compiled ones.
printf '#!/bin/sh\nPYTHONPATH= exec %s "$@"\n' "$python" > "$PYSPARK_PYTHON"
chmod 755 "$PYSPARK_PYTHON"
"$python" "$class_archive" --classes "$classes"
chmod -R a+rX "$XDG_CACHE_HOME"
rm -rf /tmp/hsperfdata_* # file names contain the process id
