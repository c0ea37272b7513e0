#!/bin/bash
# Java for the data plane, at /opt/java on every architecture. Run as root on Debian.
set -euo pipefail
"$(dirname "$0")/packages.sh" openjdk-17-jre-headless
ln -s "$(dirname "$(dirname "$(readlink -f /usr/bin/java)")")" /opt/java
# The keystore records when each certificate was imported, which is not reproducible.
python3 "$(dirname "$0")/undated_keystore.py" /etc/ssl/certs/java/cacerts "$SOURCE_DATE_EPOCH"
keytool -list -cacerts -storepass changeit > /dev/null
