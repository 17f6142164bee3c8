"""Plans: the split of each operator and the route of each table, given by the user, read from a file or found by a
search.
"""
