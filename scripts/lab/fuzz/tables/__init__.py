"""Random programs with dynamic tables: each runs in a job and in one process, and must not differ.

=============  ==========================================================================================
module         contents
=============  ==========================================================================================
`drawing`      draws programs from seeds
`body`         what every process runs
`cli`          the command line: runs programs, compares
=============  ==========================================================================================
"""
