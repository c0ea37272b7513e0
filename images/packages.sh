#!/bin/bash
# packages.sh NAME...: installs Debian packages, without anything that differs between runs. Run as root on Debian.
set -euo pipefail
export DEBIAN_FRONTEND=noninteractive
apt-get update --quiet
apt-get install --yes --quiet --no-install-recommends "$@"
rm -rf /var/lib/apt/lists/* /var/cache/apt/* /var/cache/ldconfig/* /var/cache/debconf/*-old /var/lib/dpkg/*-old
rm -rf /var/log/apt /var/log/*.log
