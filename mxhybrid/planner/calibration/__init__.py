"""The measurement of a cluster by the job that will train on it: ``mxhybrid calibrate``."""
