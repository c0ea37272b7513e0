"""Converts a row's bytes from TiDB's encoding to Arrow: row formats, cells by type, handles, checksums."""
