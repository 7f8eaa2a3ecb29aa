"""The simulation of the whole runtime: scenarios as data, histories of what was seen. See ``omni_actors.testing``."""
