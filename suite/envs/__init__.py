"""Tasks, and the environments that simulate them."""
