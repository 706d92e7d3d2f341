"""Artifacts: files and folders of models and data, as MXNet and others have left them.

`inspect` says what a path is, what wrote it, what is missing, and which command opens it. `open_artifact` makes a model
ready to load. Nothing is executed: archives are unpacked into a private folder, and pickles are only named.
"""

from flowmx.artifacts.inspection import inspect
from flowmx.artifacts.opening import open_artifact
from flowmx.artifacts.report import Report

__all__ = ["Report", "inspect", "open_artifact"]
