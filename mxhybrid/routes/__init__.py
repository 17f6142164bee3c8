"""How each parameter travels, and who chooses that."""
