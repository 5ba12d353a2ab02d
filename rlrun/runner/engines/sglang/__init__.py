"""SGLang servers: their command line, their process, their weights."""
