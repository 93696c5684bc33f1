"""Authentication and authorisation: users, keys, tokens, signatures, rules, policies."""
