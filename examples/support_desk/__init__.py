"""A project of somebody who uses Wakeful: a support desk whose tickets are durable threads."""
