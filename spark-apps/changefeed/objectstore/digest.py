"""The one hash of objects' bytes: of the spool, in commit records, and when what exists is compared with what is due.

128 bits of XXH3 as hex. It tells apart what faults and other writers make, not what a forger would; so it may be one
of memory's speed, seven times SHA-256's.
"""

from __future__ import annotations

from xxhash import xxh3_128 as Digest

__all__ = ["Digest"]
