"""Files in, predictions out: one after the other (`files`), or as a folder of shards, also on a cluster (`shards`)."""

from mixmatch.predict.files import Prediction, holds_rows, predict_files
from mixmatch.predict.shards import Summary, predict_shards

__all__ = ["Prediction", "Summary", "holds_rows", "predict_files", "predict_shards"]
