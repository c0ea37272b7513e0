"""Who pulls which span, where its segments are, and how much of them there may be."""
