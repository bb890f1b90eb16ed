"""What a file promises, in words and numbers, and attacks on what its runs really release."""
