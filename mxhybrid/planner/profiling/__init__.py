"""Times of operators, measured on this machine and kept in a file."""
