#!/bin/bash
# What the stages that build need and the images don't. Debian, as root.
set -euo pipefail
"$(dirname "$0")/packages.sh" python3-venv
