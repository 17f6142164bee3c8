"""Tests of mxhybrid.elastic that start no job."""
