"""Example projects. Not part of the distribution."""
