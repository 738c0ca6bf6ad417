"""What Chargehand costs, measured beside the least that the same work could cost: `make bench`.

Server, load, webhook receiver and the bare client are processes of their own on loopback. Baseline and measured runs take
turns, so that whatever else the machine does hurts both; a ratio is the median of the ratios of all rounds.
"""
