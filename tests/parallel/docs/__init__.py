"""README, docs and examples keep their word."""
