"""What can be seen from outside: counters in the text format of Prometheus."""
