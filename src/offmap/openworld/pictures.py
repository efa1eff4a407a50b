"""How pictures become inputs of a deployment's network, kept beside it so that nobody has to say it again."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from offmap import store


@dataclass(frozen=True)
class PictureSettings:
    """Size, channels and scaling of pictures, as the options of the command line have them.

    Parameters
    ----------
    image_size : int, optional
        Pixels a side; as they come when absent.
    gray : bool, default False
        One channel, not three.
    mean, std : tuple of float, optional
        Subtracted from pixels in [0, 1], and divided by.

    Examples
    --------
    >>> settings = PictureSettings(16, gray=True)
    >>> PictureSettings.from_json(settings.to_json()) == settings
    True
    >>> settings.shape
    (1, 16, 16)
    """

    image_size: int | None = None
    gray: bool = False
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None

    @property
    def shape(self) -> tuple[int, ...] | None:
        """Channels, rows and columns of one input; `None` where pictures are as large as they come."""
        return None if self.image_size is None else (1 if self.gray else 3, self.image_size, self.image_size)

    def to_json(self) -> dict[str, Any]:
        """Plain values to save."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> PictureSettings:
        """Return the inverse of `to_json`, after checking what a file holds."""
        fields = {"image_size": int | None, "gray": bool, "mean": list | tuple | None, "std": list | tuple | None}
        store.check_fields("deployment", values, fields)
        scaling = {name: values[name] and tuple(map(float, values[name])) for name in ("mean", "std")}
        return cls(values["image_size"], values["gray"], scaling["mean"] or None, scaling["std"] or None)
