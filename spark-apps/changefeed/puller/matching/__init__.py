"""From the bytes of a stream to committed rows: decode, match, spill what memory has no room for."""
