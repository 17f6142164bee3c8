"""The α-β model of Gholami et al. (SPAA 2018): communication costs by closed formulas."""
