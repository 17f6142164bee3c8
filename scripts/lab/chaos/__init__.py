"""The chaos suite: real jobs on emulated hosts, with a fault in each; checks how each job reacts."""
