"""What requests and answers look like, for the OpenAPI document."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, Field


class ScoredInput(BaseModel):
    """What is said of one input."""

    id: str = Field(description="Names the input; an unknown one is on the pile under this id.")
    score: float = Field(description="How well the input is known; higher = known.")
    p_value: float = Field(description="Conformal p-value: small when the input is unlike the known ones.")
    known: bool
    class_: str | int | None = Field(
        alias="class",
        description="The nearest known class: its name where names are known, else its index; null without a head.",
    )


class Scored(BaseModel):
    """One result per row, in order."""

    results: list[ScoredInput]


class UnknownInput(BaseModel):
    """An input on the pile."""

    id: str
    time: float = Field(description="When it was scored, in seconds since 1970.")
    score: float
    p_value: float
    class_: str | int | None = Field(alias="class")
    guard: str = Field(description="The version of the guard that scored it.")
    status: str = Field(description="open, resolved or discarded.")
    reference: str | None = Field(description="What the client called it.")
    content_type: str | None = Field(description="What the stored input is; null when only features came.")


class WholeUnknown(UnknownInput):
    """The same with features and content."""

    features: list[float] | None
    content: str | None = Field(description="The stored input in base64.")


class Unknowns(BaseModel):
    """A page of the pile, oldest first."""

    items: list[UnknownInput]
    next: str | None = Field(description="Pass as `after` for the next page; null at the end.")


class Guard(BaseModel):
    """The guard in service."""

    detector: str
    version: str
    since: float
    tpr: float = Field(description="The share of known inputs that is accepted.")
    threshold: float | None = Field(
        description="The score from which an input is known; null when calibrated by class."
    )
    thresholds: dict[str, float] | None = Field(description="The same for each class, when calibrated by class.")
    calibrated_on: int
    classes: int | None
    class_names: list[str] | None
    features: int | None = Field(description="Features per row, when the guard knows.")
    takes_inputs: bool = Field(description="Whether a network is there to run inputs.")


class Status(BaseModel):
    """That all is well."""

    status: str


class Reloaded(BaseModel):
    """The guard now in service."""

    version: str


class Failure(BaseModel):
    """Why a request was refused."""

    error: str = Field(description="One sentence.")


SCORE_BODY: dict[str, Any] = {
    "required": True,
    "content": {
        "application/json": {
            "schema": {
                "type": "object",
                "description": "One of features, inputs and images.",
                "properties": {
                    "features": {"type": "array", "items": {"type": "array", "items": {"type": "number"}}},
                    "inputs": {"type": "array", "items": {"type": "array"}, "description": "What the network reads."},
                    "images": {"type": "array", "items": {"type": "string", "format": "byte"}},
                    "references": {"type": "array", "items": {"type": "string", "maxLength": 1024}},
                },
            },
            "example": {"features": [[0.1, 0.2], [0.3, 0.4]], "references": ["a.png", "b.png"]},
        },
        "application/x-npy": {"schema": {"type": "string", "format": "binary"}},
        "image/png": {"schema": {"type": "string", "format": "binary"}},
        "image/jpeg": {"schema": {"type": "string", "format": "binary"}},
        "image/webp": {"schema": {"type": "string", "format": "binary"}},
        "image/bmp": {"schema": {"type": "string", "format": "binary"}},
    },
}
