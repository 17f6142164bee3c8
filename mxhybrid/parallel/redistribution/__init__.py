"""Redistribution of a tensor from one layout to another: who sends which box to whom, and the transports."""
