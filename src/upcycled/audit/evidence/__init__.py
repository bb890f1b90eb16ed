"""What somebody needs to check an epsilon without trusting whoever states it."""
