"""Measurement of a cluster by a job that runs on it: ``mxhybrid calibrate``."""
