"""The chaos suite: real jobs on emulated hosts, with a fault in each; checks how each job reacts.

================  ==========================================================================
module            role
================  ==========================================================================
`cases`           the faults, their victims and moments, and the expected outcomes
`body`            the script that every worker runs; announces its moments, waits for the go
`table_body`      the same for cases with dynamic tables; resumes from checkpoints
`faults`          kills, stops, cuts and slows down
`runner`          runs one case: start, wait for the moment, inject, watch the end, judge; resume
`cli`             the command line; the table
================  ==========================================================================
"""
