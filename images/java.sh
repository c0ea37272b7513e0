#!/bin/bash
# The data plane's Java, at /opt/java whatever the processor is. Debian, as root.
set -euo pipefail
export DEBIAN_FRONTEND=noninteractive
apt-get update --quiet
apt-get install --yes --quiet --no-install-recommends openjdk-17-jre-headless
rm -rf /var/lib/apt/lists/*
ln -s "$(dirname "$(dirname "$(readlink -f /usr/bin/java)")")" /opt/java
