"""Throughput: the cost of an update in exact numbers, and the speed beside another commit's."""
