"""The command line: thin commands that read arguments, call experiments, and show what came out."""
