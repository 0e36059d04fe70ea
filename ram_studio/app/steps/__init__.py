"""The five steps of the app, one module each: build the components, wire the events."""
