"""`scaleperf plan`: what would run, what it costs, what it saves, and which speed to expect of a larger rung."""
