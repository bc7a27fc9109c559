"""Tables of our recorded runs and of stored references."""
