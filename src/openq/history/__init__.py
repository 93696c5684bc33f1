"""The history as columns: journal segments and archive files as Arrow batches. Needs numpy and pyarrow."""
