"""The search for a plan: the space of plans, their evaluation, and Markov chain Monte Carlo."""
