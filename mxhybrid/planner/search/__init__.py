"""The search for a plan: the search space, its evaluation, and Markov chain Monte Carlo."""
