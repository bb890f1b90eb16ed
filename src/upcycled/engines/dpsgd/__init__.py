"""DP-SGD: clipped and noisy gradients of every sample."""
