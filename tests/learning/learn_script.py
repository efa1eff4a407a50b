"""Learns into a folder; a test kills it in the middle. Called with the folder, the objective and the epochs."""

import sys

if __name__ == "__main__":
    import torch
    from learning_blobs import blobs

    from offmap.learning import learn

    torch.set_num_threads(1)
    rows, _, labels = blobs(size=40)
    learn(
        rows,
        labels,
        6,
        objective=sys.argv[2],
        seed=5,
        out=sys.argv[1],
        epochs=int(sys.argv[3]),
        batch_size=32,
        hidden=16,
    )
