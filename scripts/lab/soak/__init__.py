"""The soak: a job of random steps that stays equal to NumPy and does not grow.

=============  ==========================================================================================
module         contents
=============  ==========================================================================================
`cli`          the command line: runs a job under a launcher, looks at its processes, judges
`body`         what every worker of the job does
`model`        MXNet's optimizers in NumPy
`growth`       what processes hold, and whether it grows
=============  ==========================================================================================
"""
