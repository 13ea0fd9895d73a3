"""The console of a whole project: a page over all applications, their workers, bounded runs and releases.

It only reads: from brokers, from the control topic and the record of runs, and from workers over HTTP.
"""
