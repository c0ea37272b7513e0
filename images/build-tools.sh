#!/bin/bash
# Needed by the build stages but not by the images. Run as root on Debian.
set -euo pipefail
"$(dirname "$0")/packages.sh" python3-venv
