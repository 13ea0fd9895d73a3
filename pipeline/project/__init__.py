"""The front door: a project, its applications, and all that can be done with each, from Python.

A script, a notebook, a test, the command line and Airflow come in here. Nothing here prints, and nothing of the process
changes: neither logging nor signals nor the garbage collector. What takes an engine loads it when it is called.
"""
