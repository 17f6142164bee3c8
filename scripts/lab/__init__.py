"""Real jobs, on this machine and on emulated hosts, behind the tests and the scripts."""
