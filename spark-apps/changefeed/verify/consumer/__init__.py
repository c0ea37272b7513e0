"""O8: reads the sink the way a consumer of TiCDC's storage files does (docs/architecture.md, Verify).

Tables are created from schema files, changed by their statements and filled from data files, across all DDLs. They must
end up like the upstream's at the checkpoint: names, columns, types, rows. The hard rules, whose violation makes TiCDC's
own consumer exit, are checked on the way. What the files don't say is taken from the upstream, with a note.
"""
