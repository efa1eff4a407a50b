"""Groups of unknown inputs in the users' own labelling tools, and their labels back on the triage page."""

from offmap.service.labelling.argilla import ArgillaDataset
from offmap.service.labelling.client import LabelOutcome, LabelTask, TriageClient
from offmap.service.labelling.fiftyone import export_fiftyone
from offmap.service.labelling.label_studio import LabelStudioProject

__all__ = ["ArgillaDataset", "LabelOutcome", "LabelStudioProject", "LabelTask", "TriageClient", "export_fiftyone"]
