"""Modules that need neither MXNet nor a job: errors, settings, files, logging, and readings of the machine."""
