"""What each process of a run with several runs: python ranks_script.py FOLDER BATCH_SIZE OBJECTIVE..."""

import sys

if __name__ == "__main__":
    from learning_blobs import blobs

    from offmap.learning import learn

    folder, size, *names = sys.argv[1:]
    rows, _, labels = blobs(size=50)
    for name in names:
        learn(rows, labels, 6, objective=name, out=f"{folder}/{name}", batch_size=int(size), epochs=3, neighbours=5)
