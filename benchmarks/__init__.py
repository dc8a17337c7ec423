"""Figures, as ratios measured in one run; nothing here is part of the tests."""
