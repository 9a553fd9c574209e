"""Deterministic simulation: the daemon's real parts on simulated time, with faults drawn from a seed (`run.py`)."""
