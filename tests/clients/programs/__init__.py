"""Programs that tests run with another interpreter than their own. They may import the client and no more."""
