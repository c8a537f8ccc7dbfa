"""One thread for every test: the networks are tiny, and two threads on a shared machine make them 15 times slower."""

import torch

torch.set_num_threads(1)
