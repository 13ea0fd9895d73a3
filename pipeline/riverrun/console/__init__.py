"""The console of a whole project: a page over all applications, their instances, bounded runs and releases.

It only reads: from brokers, from the control topic and the record of runs, and from instances over HTTP.
It answers over HTTP with the parts of `service`.
"""
