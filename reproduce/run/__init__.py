"""Run it: processes, leases, progress, the live view."""
