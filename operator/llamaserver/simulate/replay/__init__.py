"""The law on somebody's own history: what Prometheus kept of a fleet -> demand -> what would have come of it.

Pure: series go in, a demand, figures and reports come out. `llamaserver.prometheus` reads the series.
"""
