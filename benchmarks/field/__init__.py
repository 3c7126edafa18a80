"""The field's small job, done by three contestants: append one row per entity, in order, recorded."""
