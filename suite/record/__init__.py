"""A run's folder: its record, its tables, what makes it whole, the live view."""
