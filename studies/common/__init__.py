"""What all studies share: where cells are kept, how pages are written, what may be claimed, where the data are."""
