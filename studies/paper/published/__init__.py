"""The official code's model and way of tuning, and the chain from our gains to the paper's."""
