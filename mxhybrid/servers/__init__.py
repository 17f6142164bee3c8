"""MXNet's parameter servers, both ends: the tables that they hold, and how rows get there and back."""
