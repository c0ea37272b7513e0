"""All .proto files and what `make generate` makes of them; checked in, compared in CI."""
