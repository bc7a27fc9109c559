"""The words of the command line, those that belong together in a file; `__main__.py` lists them."""
