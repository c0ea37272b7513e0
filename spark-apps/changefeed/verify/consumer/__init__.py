"""O8: the sink read as a consumer of TiCDC's storage files reads it (facts, ticdc-compatibility 3).

Tables are made of schema files, changed by their statements and filled from data files, across all DDLs. They must end
as the upstream's are at the checkpoint: names, columns, types, rows. The hard rules, at which TiCDC's own consumer
exits, are held on the way. What the files don't say is taken from the upstream, and a note says what that was.
"""
