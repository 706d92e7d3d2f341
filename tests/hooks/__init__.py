"""Methods that MXNet calls on itself and that subclasses or packages override: flowmx calls them, too."""
