"""The lane, a compiled transport: rows, allreduces and transfers through memory that the processes of a host share, and
through one connection between two hosts.
"""
