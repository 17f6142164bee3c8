"""Jobs of several workers on this machine, by real launchers; a folder for each theme, its scripts in ``bodies``."""
