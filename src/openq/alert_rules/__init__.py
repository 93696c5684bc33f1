"""Alert rules as data: signals, the expression grammar, the built-in rules and their configuration. Pure."""
