"""The same proven epsilon, spent in other ways: noise inside the objective, and what ``privacy advise`` says."""
