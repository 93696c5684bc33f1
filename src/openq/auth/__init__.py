"""Who may come in, and what they may do: users, keys, tokens, signatures, rules."""
