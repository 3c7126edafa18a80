"""How agents run: what stands between an attempt and the user's code."""
