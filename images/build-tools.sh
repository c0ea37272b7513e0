#!/bin/bash
# What the stages that build need and the images don't. Debian, as root.
set -euo pipefail
export DEBIAN_FRONTEND=noninteractive
apt-get update --quiet
apt-get install --yes --quiet --no-install-recommends python3-venv
rm -rf /var/lib/apt/lists/*
