"""Running a plan on a Ray cluster."""
