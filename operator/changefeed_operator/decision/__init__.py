"""From what was observed to what to do: pure, total, without a clock of its own."""
