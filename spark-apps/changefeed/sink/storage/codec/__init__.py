"""One module a file format: columns in, bytes out; a pure function of its arguments (rule 10)."""
