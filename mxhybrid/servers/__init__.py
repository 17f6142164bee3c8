"""MXNet's parameter servers, both ends: the tables that they hold, and the links that carry rows."""
