"""Does a test fail when a number's code is wrong? Seeded mutants of the code that decides privacy and rounds."""
