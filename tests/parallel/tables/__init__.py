"""Tables on servers and on workers: routes, transports, partitions, row pulls, and the sums of dense weights in the
same jobs.
"""
from pathlib import Path

#: The folder of the scripts that workers run.
BODIES = Path(__file__).resolve().parent / 'bodies'
