#!/bin/sh
# ClickHouse 26.9.2.1 (chdb 4.4.0) with MySQL's dates that have a part of 0, in csv.
#
# date_time_input_format is best_effort by default. It reads the DateTime 0000-00-00 00:00:00 as January 1st of the
# current year, 2024-00-07 as January 7th, and 0000-05-06 as May 6th of the current year, without a word. With basic, all
# of them are 1970-01-01 00:00:00, and in a Date column 0000-00-00 is 1970-01-01 by either.
#
# Seen on 2026-11-29 (Python 3.11):
#   DateTime, best_effort: this year-01-01 00:00:00, 2024-01-07 01:02:03, this year-05-06 00:00:00
#   DateTime64, best_effort: this year-01-01 00:00:00, 2024-01-07 01:02:03, this year-05-06 00:00:00
#   DateTime, basic: 1970-01-01 00:00:00, 1970-01-01 00:00:00, 1970-01-01 00:00:00
#   Date: 1970-01-01
#   the default: best_effort
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q chdb==4.4.0
cat >"$folder/seen.py" <<'PYTHON'
from datetime import UTC, datetime

import chdb

TIMES = ("0000-00-00 00:00:00", "2024-00-07 01:02:03", "0000-05-06 00:00:00")


def read(kind, *texts, form="best_effort"):
    lines = "".join(f'"{text}"\n' for text in texts)
    query = f"SELECT * FROM format(CSV, 'a {kind}', '{lines}') SETTINGS date_time_input_format = '{form}'"
    found = chdb.query(query, "TabSeparated").bytes().decode().splitlines()
    return [text.replace(f"{datetime.now(UTC):%Y}-", "this year-", 1) for text in found]


print("DateTime, best_effort:", ", ".join(read("DateTime(''UTC'')", *TIMES)))
print("DateTime64, best_effort:", ", ".join(read("DateTime64(0, ''UTC'')", *TIMES)))
print("DateTime, basic:", ", ".join(read("DateTime(''UTC'')", *TIMES, form="basic")))
print("Date:", *read("Date", "0000-00-00"))
default = chdb.query("SELECT default FROM system.settings WHERE name = 'date_time_input_format'", "TabSeparated")
print("the default:", default.bytes().decode().strip())
PYTHON
"$folder/venv/bin/python" "$folder/seen.py" | tee "$folder/seen"
sed -n 's/^#   //p' "$0" | diff - "$folder/seen"
