#!/bin/sh
# Flink 2.2.0's format parquet (parquet 1.15.2) with a file of Apache Arrow (pyarrow 26.0.1).
#
# A column of DECIMAL(10, 2) as pyarrow writes it by default, in fixed bytes with a dictionary, ends the job:
# UnsupportedOperationException in PlainBinaryDictionary. It is read without a dictionary, or where it is stored as an
# integer (store_decimal_as_integer=True); so is DECIMAL(19, 2), which fits no integer. Java 17 and Maven are needed.
#
# Seen on 2026-11-29 (Python 3.11, Java 17):
#   dictionary: UnsupportedOperationException
#   plain: +I[12.50]
#   integer: +I[12.50]
#   wide: +I[12.50]
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q pyarrow==26.0.1
"$folder/venv/bin/python" - "$folder" <<'PYTHON'
import sys
from decimal import Decimal

import pyarrow as pa
import pyarrow.parquet as pq

files = {
    "dictionary": (10, {}),
    "plain": (10, {"use_dictionary": False}),
    "integer": (10, {"store_decimal_as_integer": True}),
    "wide": (19, {}),
}
for name, (digits, options) in files.items():
    values = pa.array([Decimal("12.50")], pa.decimal128(digits, 2))
    pq.write_table(pa.table({"d": values}), f"{sys.argv[1]}/{name}.parquet", **options)
PYTHON
{
    echo '<project><modelVersion>4.0.0</modelVersion><groupId>g</groupId><artifactId>a</artifactId><version>1</version>'
    echo '<dependencies>'
    for artifact in org.apache.flink:flink-clients:2.2.0 org.apache.flink:flink-table-api-java-bridge:2.2.0 \
        org.apache.flink:flink-table-runtime:2.2.0 org.apache.flink:flink-table-planner-loader:2.2.0 \
        org.apache.flink:flink-connector-files:2.2.0 org.apache.flink:flink-parquet:2.2.0 \
        org.apache.hadoop:hadoop-client-api:3.4.2 org.apache.hadoop:hadoop-client-runtime:3.4.2 \
        org.slf4j:slf4j-nop:1.7.36; do
        echo "$artifact" | sed 's|\(.*\):\(.*\):\(.*\)|<dependency><groupId>\1</groupId><artifactId>\2</artifactId>\
<version>\3</version></dependency>|'
    done
    echo '</dependencies></project>'
} >"$folder/pom.xml"
mvn -q -B -f "$folder/pom.xml" dependency:copy-dependencies -DoutputDirectory="$folder/jars"
cat >"$folder/Seen.java" <<'JAVA'
import org.apache.flink.table.api.EnvironmentSettings;
import org.apache.flink.table.api.TableEnvironment;
import org.apache.flink.types.Row;
import org.apache.flink.util.CloseableIterator;

public class Seen {
  public static void main(String[] arguments) {
    for (String name : new String[] {"dictionary", "plain", "integer", "wide"}) {
      TableEnvironment tables = TableEnvironment.create(EnvironmentSettings.inBatchMode());
      tables.executeSql("CREATE TEMPORARY TABLE t (d DECIMAL(" + (name.equals("wide") ? 19 : 10) + ", 2)) WITH ("
          + "'connector' = 'filesystem', 'format' = 'parquet', 'path' = 'file://" + arguments[0] + "/" + name + ".parquet')");
      try (CloseableIterator<Row> rows = tables.executeSql("SELECT d FROM t").collect()) {
        System.out.println(name + ": " + rows.next());
      } catch (Exception failure) {
        Throwable root = failure;
        while (root.getCause() != null) {
          root = root.getCause();
        }
        System.out.println(name + ": " + root.getClass().getSimpleName());
      }
    }
    System.exit(0);
  }
}
JAVA
javac -cp "$folder/jars/*" -d "$folder" "$folder/Seen.java"
java -cp "$folder:$folder/jars/*" Seen "$folder" | tee "$folder/seen"
sed -n 's/^#   //p' "$0" | diff - "$folder/seen"
