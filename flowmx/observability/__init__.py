"""Observability: the flight recorder, the doctor, the dashboard and the NaN watch. MXNet's profiler is separate."""
