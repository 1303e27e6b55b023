"""What an EAGLE layer can begin with: the linear map that guesses the next feature best."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from foreword.train.data.features import Entry, FeatureStore

_ROWS = 20_000  # many times the map's inputs
_RIDGE = 1e-3  # of the mean diagonal: keeps the map finite where inputs depend on each other


def fit_next_feature(store: FeatureStore, entries: Sequence[Entry], embedding: Tensor) -> tuple[Tensor, Tensor]:
    """Weight (H, 2 H) and bias (H) of least squares from (embedding of the next token, feature) to the next feature.

    Over answers spread over the data, as many as have some 20,000 tokens.
    """
    num_rows = sum(entry.answer_len for entry in entries)
    chosen = entries[:: max(1, num_rows // _ROWS)]
    size = 2 * store.hidden_size + 1
    squares = torch.zeros(size, size, dtype=torch.float64)
    products = torch.zeros(size, store.hidden_size, dtype=torch.float64)
    for entry in chosen:
        rows = store.rows(entry.start + entry.prompt_len - 1, entry.start + entry.length)
        features = rows.hidden.float()
        inputs = torch.cat((F.embedding(rows.token_ids[1:], embedding).float(), features[:-1]), dim=-1)
        inputs = F.pad(inputs, (0, 1), value=1.0)
        squares += inputs.T @ inputs
        products += inputs.T @ features[1:]
    squares.diagonal().add_(_RIDGE * squares.diagonal().mean().clamp_min(1e-12))
    found = torch.linalg.solve(squares, products).float()
    return found[:-1].T.contiguous(), found[-1].clone()
