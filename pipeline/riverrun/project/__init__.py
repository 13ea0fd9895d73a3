"""The front door: a project, its applications, and all operations on them, from Python.

Scripts, notebooks, tests, the command line and Airflow use this package. It never prints and changes no global state of the
process: neither logging nor signals nor the garbage collector. Calls load engines on demand.
"""
