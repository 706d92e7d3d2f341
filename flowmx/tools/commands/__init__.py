"""The commands of ``python -m flowmx`` that belong to no package of their own. Each is imported when it is called."""
