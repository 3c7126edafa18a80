"""What Wakeful costs and how fast it is, measured on PostgreSQL and Redis: `make bench`."""
