"""Architectures of other people's libraries, and a few in plain torch, small and randomly initialised: what discovery finds."""
