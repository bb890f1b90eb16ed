from __future__ import annotations

import pytest
import torch


@pytest.fixture
def without_onednn():
    """torch can stack an LSTM only where oneDNN's own LSTM does not step in."""
    before = torch.backends.mkldnn.enabled
    torch.backends.mkldnn.enabled = False
    yield
    torch.backends.mkldnn.enabled = before
