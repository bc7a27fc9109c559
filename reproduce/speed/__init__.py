"""Throughput: workloads, shares of the machine, the gate, its history."""
