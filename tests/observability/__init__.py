"""Tests of the dashboard, the doctor, the profiler and the recorder."""
