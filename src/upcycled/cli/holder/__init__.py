"""Commands of `upcycled privacy` for who holds the data: accounts, ledgers, evidence."""
