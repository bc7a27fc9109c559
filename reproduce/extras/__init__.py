"""Commands beside the grid: verify, evaluate, compare, list, publish, mirror."""
