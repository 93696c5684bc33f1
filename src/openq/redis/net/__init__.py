"""The connections to Redis: addresses, nodes, connections for threads and loops, calls, confirmed copies."""
