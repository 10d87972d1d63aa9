"""One torch thread for all tests: the networks are small, and a second thread costs more than it gives."""

import signal

import pytest
import torch

# A shell that starts a job in the background makes it ignore Ctrl-C, and the children with it; some tests are about Ctrl-C.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True, scope="session")
def one_torch_thread():
    torch.set_num_threads(1)
