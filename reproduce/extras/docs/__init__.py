"""`docs [--check]`: pages are written by hand, but for the blocks that code and data give.

pages    finds the blocks, and fills them or says which are out of date
agent    an algorithm's equations, deviations, settings by source and recorded columns
results  verdicts and costs of what is published
wanted   what is missing there, and what it would cost
controls our runs beside controls with the same settings
markdown tables
api      signatures and docstrings of the functions that people import
"""
