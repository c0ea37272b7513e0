"""A row's bytes as TiDB encodes them, and what they are in Arrow: row formats, cells by type, handles, checksums."""
