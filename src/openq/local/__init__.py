"""The broker in this process: the engine and a journal behind one lock."""
