"""Pictures for the suite ``imagenet-efflite0`` from a Debian package: photographs known, drawings and signs unknown.

``python benchmarks/stamps.py /usr/share/tuxpaint/stamps data`` (after ``apt-get install tuxpaint-stamps-default``) puts
the photographs of animals, food, plants, vehicles and household things into ``data/imagenet/{known,test}``, every other
one, and cartoons, letters and signs into ``data/ood``, each cut out of white; then
``offmap bench imagenet-efflite0 --data data``. Photographs of single things are what ImageNet is made of, but these
have no ImageNet labels, so the network's own answers stand in for classes.
"""

from __future__ import annotations

import argparse
from pathlib import Path

PHOTOGRAPHS = ("animals", "food", "plants", "vehicles", "household")
SIDE = 256


def sorted_out(stamps: Path) -> dict[str, list[Path]]:
    """Which file goes where."""
    files = sorted(stamps.rglob("*.png"))
    drawn = [file for file in files if {"cartoon", "symbols"} & set(file.relative_to(stamps).parts)]
    photographs = [
        file for file in files if file.relative_to(stamps).parts[0] in PHOTOGRAPHS and file not in set(drawn)
    ]
    return {"imagenet/known": photographs[::2], "imagenet/test": photographs[1::2], "ood": drawn}


def on_white(source: Path, target: Path) -> None:
    """The picture in the middle of a white square."""
    from PIL import Image

    with Image.open(source) as opened:
        stamp = opened.convert("RGBA")
    stamp.thumbnail((SIDE, SIDE))
    square = Image.new("RGBA", (SIDE, SIDE), "white")
    square.alpha_composite(stamp, ((SIDE - stamp.width) // 2, (SIDE - stamp.height) // 2))
    square.convert("RGB").save(target)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("stamps", type=Path)
    parser.add_argument("out", type=Path)
    options = parser.parse_args()
    for folder, files in sorted_out(options.stamps).items():
        (options.out / folder).mkdir(parents=True, exist_ok=True)
        for file in files:
            name = "-".join(file.relative_to(options.stamps).parts)
            on_white(file, options.out / folder / name)
        print(f"{folder}: {len(files)} pictures")


if __name__ == "__main__":
    main()
