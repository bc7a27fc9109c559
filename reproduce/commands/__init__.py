"""What a user types: a file for each word has its `main`; `__main__.py` lists them."""
