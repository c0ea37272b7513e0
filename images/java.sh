#!/bin/bash
# The data plane's Java, at /opt/java whatever the processor is. Debian, as root.
set -euo pipefail
"$(dirname "$0")/packages.sh" openjdk-17-jre-headless
ln -s "$(dirname "$(dirname "$(readlink -f /usr/bin/java)")")" /opt/java
# When it imported each certificate is of no use to anybody.
python3 "$(dirname "$0")/undated_keystore.py" /etc/ssl/certs/java/cacerts "$SOURCE_DATE_EPOCH"
keytool -list -cacerts -storepass changeit > /dev/null
