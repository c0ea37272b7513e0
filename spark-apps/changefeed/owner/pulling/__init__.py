"""Who pulls which span, where its segments are, and how much space they may take."""
