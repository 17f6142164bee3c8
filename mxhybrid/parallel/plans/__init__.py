"""Plans: how each operator is split and how the store holds each table, written by hand, in a file or found."""
