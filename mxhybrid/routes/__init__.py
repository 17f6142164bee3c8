"""Routes: the transport of each parameter's gradients and values, and its choice."""
