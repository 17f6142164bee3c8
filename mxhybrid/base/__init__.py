"""What needs neither MXNet nor a job: errors, settings, files, logging, and what a process knows of its machine."""
