"""Data sets, transforms and loaders."""

import numpy as np

from flowmx import gluon, nd


class Squares(gluon.data.Dataset):
    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> tuple[float, float]:
        return float(index), float(index**2)


loader = gluon.data.DataLoader(Squares(), batch_size=4, last_batch="keep")
sizes = [data.shape[0] for data, _label in loader]
assert sizes == [4, 4, 2]
pairs = gluon.data.ArrayDataset(nd.ones((6, 2)), np.arange(6)).transform_first(lambda x: x * 2)
first, label = pairs[1]
assert first.asnumpy().tolist() == [2, 2] and int(label) == 1
