#!/bin/bash
# Common to both images: Python, an init that reaps zombies, and the user they run as. Run as root on Debian.
set -euo pipefail
"$(dirname "$0")/packages.sh" ca-certificates python3 tini
useradd --uid 185 --user-group --create-home --home-dir /home/changefeed --shell /usr/sbin/nologin changefeed
rm -f /etc/passwd- /etc/group- /etc/shadow- /etc/gshadow- /var/log/lastlog /var/log/faillog
