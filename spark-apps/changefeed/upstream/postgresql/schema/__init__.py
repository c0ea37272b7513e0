"""How tables are defined: in the catalog, and as the stream describes them."""
