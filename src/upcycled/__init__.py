"""Upcycled federated learning."""
