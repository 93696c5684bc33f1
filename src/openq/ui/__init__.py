"""The dashboard at `/ui/`: the files of a single-page application, which uses the REST API alone."""
