"""The chaos suite: real jobs on emulated hosts, something that goes wrong in each, and what the job made of it.

================  ==========================================================================
module            role
================  ==========================================================================
`cases`           which fault, in which process, at which moment; what is to be expected
`body`            the script that every worker runs; announces its moments, waits for the go
`faults`          kills, stops, cuts and slows down
`runner`          runs one case: start, wait for the moment, inject, watch the end, judge
`cli`             the command line; the table
================  ==========================================================================
"""
