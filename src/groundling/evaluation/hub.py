"""Download published policies from the Hugging Face hub, and upload them."""

import glob
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from groundling.errors import RunError
from groundling.io.documents import read_object
from groundling.lm.load.model_files import is_offline
from groundling.training import checkpoint

ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")  # of a repository: OWNER/NAME


def fetch(repository: str, revision: str | None = None) -> Path:
    """Download only the files in a published policy's manifest into the hub's cache; return the folder."""
    from huggingface_hub import hf_hub_download, snapshot_download

    with _asking(f"download {repository} from the hub"):
        manifest = hf_hub_download(repository, checkpoint.MANIFEST, revision=revision, local_files_only=is_offline())
        names = [*read_object(Path(manifest)), checkpoint.MANIFEST, "config.yaml"]
        return Path(snapshot_download(repository, revision=revision, allow_patterns=[*map(glob.escape, names)]))


def upload(folder: Path, repository: str, private: bool) -> str:
    """Upload an exported folder to the hub, using the token from ``hf auth login`` or HF_TOKEN; return its URL."""
    from huggingface_hub import HfApi

    with _asking(f"upload {folder} to {repository}", "; the folder is kept"):
        HfApi().create_repo(repository, private=private, exist_ok=True)
        return str(HfApi().upload_folder(repo_id=repository, folder_path=folder))


@contextmanager
def _asking(what: str, after: str = "") -> Iterator[None]:
    try:
        yield
    except Exception as error:  # the hub's client also raises errors from httpx and other libraries
        reason = " ".join(str(error).split()) or type(error).__name__
        if type(error).__name__ == "LocalEntryNotFoundError":
            reason = "the hub cannot be reached, and its cache has no copy"
        raise RunError(f"could not {what}: {reason:.300}{after}") from error
