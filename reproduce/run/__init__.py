"""Running a plan: processes, leases, progress, the live view, Ray."""
