"""Random training programs: each runs in a job and in one process with MXNet alone, and must not differ.

=============  ==========================================================================================
module         contents
=============  ==========================================================================================
`cli`          the command line
`session`      draws programs, runs them, looks closer at failures, counts
`runner`       runs many programs in the same processes, and compares
`body`         what every process runs
`shrinking`    makes a failing program small
`script`       turns a program into the script that is run, and shown
`pieces`       what these scripts are made of
`drawing`      draws programs from seeds
`program`      a program as data
`networks`     the same for networks that are split
`tables`       the same for dynamic tables, beside a model
`messages`     messages that lie
=============  ==========================================================================================
"""
