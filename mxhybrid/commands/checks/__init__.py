"""The checks of ``mxhybrid doctor``, one file per subject."""
