"""The commands of ``python -m flowmx`` without a separate package. A command is imported when it is called."""
