"""One torch thread for all tests: the networks are small, and a second thread costs more than it gives."""

import pytest
import torch


@pytest.fixture(autouse=True, scope="session")
def one_torch_thread():
    torch.set_num_threads(1)
