"""The paper's data sets: generated, read from their files, or fetched."""
