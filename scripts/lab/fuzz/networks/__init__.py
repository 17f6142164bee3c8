"""Random networks: each is trained split over the workers of a job and in one process, and must not differ.

=============  ==========================================================================================
module         contents
=============  ==========================================================================================
`session`      draws networks, runs them, shrinks failures, counts
`runner`       runs many networks in the same job
`body`         what every worker runs
`shrinking`    makes a failing network small
`drawer`       the process that draws and examines networks
`drawing`      draws networks from seeds
`alone`        runs a network in one process as it is drawn
`plans`        draws plans
`events`       draws what scripts do between steps
`coverage`     which operators were drawn, and which never are
`catalogue`    the operators
`script`       turns a network into the script that is run, and shown
`pieces`       what these scripts are made of: values, plans, comparison
`training`     what these scripts are made of: steps and events
`network`      a network as data
=============  ==========================================================================================
"""
