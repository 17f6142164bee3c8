"""The communication costs of Gholami et al. (SPAA 2018), by formulas of latency and bandwidth."""
