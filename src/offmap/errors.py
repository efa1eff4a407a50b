"""The few exceptions and the one warning a user can meet. Each message names the value, the rule and the way out."""


class OffmapError(Exception):
    """Base of every error that offmap raises on purpose."""


class InputError(OffmapError, ValueError):
    """A value breaks a rule: a wrong shape, a parameter out of range, NaN where numbers must be."""


class MissingError(OffmapError, LookupError):
    """The activations lack something the method reads: logits, labels, a head, an extra pass."""


class NotFittedError(OffmapError, RuntimeError):
    """The object must be fitted, finalized or calibrated before this call."""


class StoreError(OffmapError, OSError):
    """A saved file is missing, truncated, altered, or of another kind or version."""


class VerificationError(OffmapError, RuntimeError):
    """Something made here does not answer as it should, so it was not kept; the message says what differs."""


class DependencyError(OffmapError, ImportError):
    """An optional package is not installed; the message says which extra holds it."""


class OffmapWarning(UserWarning):
    """Something was handled, and you may want to know: a singular covariance, for example."""
