"""Observability: the flight recorder, the doctor, the dashboard, and the watch for NaNs. The profiler is MXNet's."""
