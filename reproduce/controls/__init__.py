"""Other programs, run as our grids and published as references; `peers` has their glue."""
