#!/bin/bash
# What both images have: Python, an init that reaps, and the user that they run as. Debian, as root.
set -euo pipefail
export DEBIAN_FRONTEND=noninteractive
apt-get update --quiet
apt-get install --yes --quiet --no-install-recommends ca-certificates python3 tini
rm -rf /var/lib/apt/lists/*
useradd --uid 185 --user-group --create-home --home-dir /home/changefeed --shell /usr/sbin/nologin changefeed
