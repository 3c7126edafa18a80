"""What people ask of the system: is it sound, why does it not move, do this instead."""
