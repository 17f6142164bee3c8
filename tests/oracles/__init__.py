"""Plain Python versions of compiled code: tests compare the two, bit for bit."""
