"""The command mxhybrid, and the scripts for developers."""
